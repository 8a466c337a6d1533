"""The systems that `benchmark.peers` compares, each in a process of its own.

A worker may run in another interpreter: at its top it imports nothing but the standard library
and what needs nothing else.
"""
