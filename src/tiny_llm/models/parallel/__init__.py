"""Tensor parallelism: one model split across processes with `mx.distributed`.

`../checkpoint/sharding.py` determines each rank's shard of a tensor. All ranks run rank 0's calls
(`engine/execution/tp_model.py`), so this package must not depend on requests, pages or sampling.

Reading order: mpi, layers, group, decoder, launch.
"""
