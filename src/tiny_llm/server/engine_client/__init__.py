"""Engine thread, and its client on the event loop.

This package must not depend on ASGI or the API protocols.

Reading order: messages, engine_thread, client, request_handle, output_queue, lifecycle, metrics,
models.
"""
