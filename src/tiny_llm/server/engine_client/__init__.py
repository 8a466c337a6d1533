"""The engine thread and the event loop's client for it.

Must not know about HTTP.

Reading order: messages, engine_thread, client, output_queue, coalescer, lifecycle, metrics.
"""
