"""Tensor parallelism on `mx.distributed`: one model on several processes, the ranks.

`../checkpoint/sharding.py` decides which part of a tensor a rank holds. Must not know about
requests, pages or sampling: rank 0 broadcasts each step (`engine/execution/tp_model.py`).

Reading order: layers, block, decoder, channel, heartbeat, init, init_watchdog, ring, mpi,
rendezvous, rank_slot, group, spawn, launcher, orphan_killer, default_group.
"""
