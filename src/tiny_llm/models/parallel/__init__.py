"""Tensor parallelism: one model split across processes with `mx.distributed`.

`../checkpoint/sharding.py` determines each rank's shard of a tensor. Must not know about requests,
pages or sampling: rank 0 broadcasts each step (`engine/execution/tp_model.py`).

Reading order: layers, block, decoder, channel, heartbeat, init, mpi, group, spawn, launcher,
orphan_killer, default_group.
"""
