"""Commands of days 7.4 and 7.5: branches of an agent run, and an evaluation.

tasks.py       arithmetic tasks whose results are written to a file
branches.py    forks an agent run, selects a branch and prints the shared KV cache pages
evaluation.py  evaluates the demo model and prints the report
"""
