"""Systems compared by `benchmark.peers`, one worker process each.

A worker may run in another interpreter, so its top-level imports are limited to the standard
library and modules without dependencies.
"""
