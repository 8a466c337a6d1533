"""KV cache pages on disk: content-addressed files and their index.

Maps keys to bytes. This package must not depend on tokens, requests or arrays.

Reading order: page_file, index, store, writer, reader.
"""
