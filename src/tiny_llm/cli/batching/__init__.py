"""Many prompts at once: batch runs, progress and the live view.

Must not parse flags.

Reading order: progress, workload, engine_run, runs, view.
"""
