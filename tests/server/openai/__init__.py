"""Tests of OpenAI's APIs."""
