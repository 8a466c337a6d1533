"""`pdm run scoreboard`: the learner's engine beside ours, this machine's limit and llama.cpp.

score    what one run found, and what earlier runs did
measure  runs the tests and the engines
table    the terminal's view
page     the same as a page
"""
