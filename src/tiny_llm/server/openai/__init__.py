"""OpenAI's APIs: chat completions, completions, responses and embeddings.

This package must not depend on Anthropic's API or the engine thread.

Reading order: chat, chat_schema, completions, responses, responses_schema, response_store,
embeddings, tokenization.
"""
