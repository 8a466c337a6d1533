"""Tests of the engine thread, admission, request streams and output coalescing."""
