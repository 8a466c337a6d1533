"""Tests of the engine thread, request streams and output coalescing."""
