"""Tests of GGUF files, with the `gguf` package as writer and oracle."""
