"""Batch runs over many prompts, their progress and the live view.

Reading order: open_loop, runs, view.
"""
