"""Batch runs over many prompts, their progress and the live view.

Defines no flags.

Reading order: progress, workload, engine_run, runs, view.
"""
