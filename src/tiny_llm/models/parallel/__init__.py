"""Tensor parallelism: one model split across processes with `mx.distributed`.

`../checkpoint/sharding.py` determines each rank's shard of a tensor. Rank 0 broadcasts each step's
inputs (`engine/execution/tp_model.py`), so this package must not depend on requests, pages or
sampling.

Reading order: layers, block, decoder, channel, heartbeat, init, mpi, group, spawn, launcher,
orphan_killer, default_group.
"""
