"""Systems compared by `benchmark.peers`, one worker process each.

A worker may run in another interpreter: at the top it imports only the standard library and modules
without dependencies.
"""
