"""The engine thread, the output queue and coalescing."""
