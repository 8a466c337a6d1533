"""OpenAI's APIs: chat completions, completions and responses.

Must not depend on Anthropic's API or the engine thread.

Reading order: chat, chat_schema, completions, responses, responses_schema, responses_input,
responses_items.
"""
