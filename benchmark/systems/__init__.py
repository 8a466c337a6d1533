"""Systems compared by `benchmark.peers`, one worker process each.

A worker may run in an interpreter without tiny-llm's dependencies, so its top-level imports are
limited to the standard library and modules without dependencies.
"""
