"""Engine thread, and the event loop's side of its requests.

This package must not depend on ASGI or the API protocols.

Reading order: messages, engine_thread, request_stream, metrics.
"""
