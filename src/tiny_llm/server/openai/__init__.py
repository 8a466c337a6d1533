"""OpenAI's protocols: chat completions, completions and responses.

Must not know about Anthropic's protocol or the engine thread.

Reading order: chat, chat_schema, completions, responses, responses_schema, responses_input,
responses_items.
"""
