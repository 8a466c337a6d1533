"""HTTP: connections, middleware, errors, validation messages, OpenAPI.

This package must not depend on prompts or the engine thread.

Reading order: uvicorn_protocol, middleware, errors, validation, unsupported.
"""
