"""`pdm run scoreboard`: the learner's engine, ours, llama.cpp and the roofline.

score        results of a run, and comparison with earlier ones
measure      runs tests and engines
table        terminal output
html_report  HTML report
"""
