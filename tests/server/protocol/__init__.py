"""Tests of output parsing, streaming, tool calls and disconnects."""
