"""Disk tier of the prefix cache, attached to the scheduler and models.

File I/O is in `kv_storage/disk`. This package must not depend on text or sampling.

Reading order: cache, factory.
"""

from .cache import DiskCache
from .factory import make_disk_cache

__all__ = ["DiskCache", "make_disk_cache"]
