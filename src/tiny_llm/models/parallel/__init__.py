"""Tensor parallelism: one model split across processes with `mx.distributed`.

`../checkpoint/sharding.py` determines each rank's shard of a tensor. Must not know about requests,
pages or sampling, because rank 0 broadcasts each step's inputs (`engine/execution/tp_model.py`).

Reading order: layers, block, decoder, channel, heartbeat, init, mpi, group, spawn, launcher,
orphan_killer, default_group.
"""
