"""The scheduler, its requests and KV cache pages.

Plain Python without MLX. This package must not depend on model execution or sampling.

Reading order: config, request, page_allocator, prefix_cache, checkpoints, state_slots,
page_manager, kv_cache_groups, scheduler, fair_scheduler, events.
"""
