"""Closing commands of Week 7: branches of a run and an evaluation.

tasks.py       arithmetic whose results are written to a file
branches.py    forks a run, selects a branch, shows the pages that the branches share
evaluation.py  evaluates the demo model, and prints the report
"""
