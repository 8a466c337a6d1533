"""Commands that close Week 7: branches of an agent run, and an evaluation.

tasks.py       arithmetic tasks whose results are written to a file
branches.py    forks a run, selects a branch and shows the shared pages
evaluation.py  evaluates the demo model and prints the report
"""
