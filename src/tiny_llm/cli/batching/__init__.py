"""Batch runs over many prompts, their progress and the live view.

Reading order: open_loop, engine_run, runs, view.
"""
