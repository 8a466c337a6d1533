"""Batch runs over many prompts, their progress and the live view.

The flags are defined in `cli/parsing`.

Reading order: progress, workload, open_loop, engine_run, runs, view.
"""
