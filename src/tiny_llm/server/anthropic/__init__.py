"""Anthropic's protocol: messages.

Must not know about OpenAI's protocols or the engine thread.

Reading order: messages, messages_schema, tools_schema.
"""
