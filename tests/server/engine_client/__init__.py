"""Tests of the engine thread, the output queue and output coalescing."""
