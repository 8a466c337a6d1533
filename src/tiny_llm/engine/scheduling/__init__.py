"""The scheduler, its requests and KV cache pages.

Plain Python without MLX. This package must not depend on model execution or sampling.

Reading order: config, request, outputs, events, page_allocator, prefix_cache,
states, page_manager, kv_groups, scheduler, fair_scheduler, snapshot.
"""
