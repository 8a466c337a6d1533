"""`pdm run speed --day N.M`: Week 4's kernels, measured by the learner's own clock.

products  what is measured: products with 4-bit weights, in a process of the learner's code
passes    what lies between the products, in one pass and in several (day 4.5)
attention what is measured: attention to many keys (day 4.6)
steps     decoding steps as nodes, and recorded (day 4.7)
report    the days' tables, and what is kept of them
"""
