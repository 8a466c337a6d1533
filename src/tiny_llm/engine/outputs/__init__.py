"""Outputs: tokens to text, text to reasoning, content and tool calls.

This package must not depend on the scheduler's decisions or the API protocols.

Reading order: output_processor, output_parser.
"""
