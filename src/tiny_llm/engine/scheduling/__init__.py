"""The scheduler, its requests and KV cache pages.

Plain Python without MLX. Must not know how tokens are computed or sampled.

Reading order: config, request, outputs, events, page_allocator, prefix_cache,
states, page_manager, scheduler, fair_scheduler, snapshot.
"""
