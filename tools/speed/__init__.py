"""`pdm run speed --day 4.1` and `4.2`: Week 4's kernels, measured by the learner's own clock.

products  what is measured: products with 4-bit weights, in a process of the learner's code
report    the two days' tables, and what is kept of them
"""
