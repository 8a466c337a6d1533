"""`pdm run scoreboard`: speed of the learner's engine and of other engines.

score        results of a run, and comparison with earlier runs
measure      runs tests and engines
table        terminal output
html_report  HTML report
"""
