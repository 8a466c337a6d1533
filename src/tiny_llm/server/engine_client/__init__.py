"""Engine thread, and its client on the event loop.

Must not know about HTTP.

Reading order: messages, engine_thread, client, output_queue, lifecycle, metrics, models.
"""
