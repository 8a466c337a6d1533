"""Tensor parallelism over `mx.distributed`: one model on several processes (ranks).

`../checkpoint/sharding.py` decides which shard of a tensor each rank holds. Independent of
requests, pages and sampling: rank 0 broadcasts each step (`engine/execution/tp_model.py`).

Reading order: layers, block, decoder, channel, heartbeat, init, mpi, group, spawn, launcher,
orphan_killer, default_group.
"""
