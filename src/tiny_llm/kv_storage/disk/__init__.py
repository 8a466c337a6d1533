"""KV cache pages on disk: content-addressed files, read and written by a thread.

Maps keys to bytes. This package must not depend on tokens, requests or arrays.

Reading order: store, io_thread.
"""
