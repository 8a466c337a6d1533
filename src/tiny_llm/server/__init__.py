"""HTTP server: OpenAI- and Anthropic-compatible API for the engine.

One process: the event loop in the main thread, each model's engine in a separate thread. This
package drives engines through `LLM` and must not know how they compute tokens.

Reading order: process, app, settings, http, openai, anthropic, protocol, models, engine_client,
operations, replicas.
"""
