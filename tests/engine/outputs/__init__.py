"""Tests of the output parser: reasoning, content and tool calls."""
