"""Batch runs over many prompts, their progress and the live view.

Must not define flags.

Reading order: progress, workload, engine_run, runs, view.
"""
