"""Anthropic's Messages API.

This package must not depend on OpenAI's APIs or the engine thread.

Reading order: messages, messages_schema.
"""
