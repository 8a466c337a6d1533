"""Batch runs over many prompts, their progress and the live view.

Defines no flags.

Reading order: progress, workload, open_loop, engine_run, runs, view.
"""
