"""Engine thread, and its client on the event loop.

Must not know about HTTP.

Reading order: messages, engine_thread, client, request_handle, output_queue, lifecycle, metrics,
models.
"""
