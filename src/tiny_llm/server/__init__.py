"""HTTP server: OpenAI- and Anthropic-compatible API of the engine.

One process: the event loop in the main thread, the engine in a second one. Must not know how tokens
are computed: it uses `engine/` through `LLM`.

Reading order: process, app, context, settings, http, openai, anthropic, protocol, engine_client,
ops, replicas.
"""
