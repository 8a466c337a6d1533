"""`pdm run speed --day N.M`: benchmarks of the learner's Week 4 kernels.

matmuls       4-bit matmuls, in a process with the learner's code
fused_ops     operations between a block's matmuls, fused and unfused (day 4.5)
attention     attention to many keys (day 4.6)
decode_steps  decoding steps as separate graph nodes and as one captured node (day 4.7)
report        tables, and the verdict on an answer
"""
