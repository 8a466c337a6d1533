"""HTTP: connections, middleware, errors, validation messages, OpenAPI.

Must not know about prompts or the engine thread.

Reading order: uvicorn_protocol, middleware, errors, validation, unsupported, openapi.
"""
