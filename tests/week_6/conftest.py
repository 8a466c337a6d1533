"""Fixtures of Week 6."""

import mlx.core as mx
import pytest

from tests.week_6.threaded_ranks import Ranks, all_gather, all_sum


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> type[Ranks]:
    """Factory for `Ranks`; replaces MLX's collectives for the test."""
    monkeypatch.setattr(mx.distributed, "all_sum", all_sum)
    monkeypatch.setattr(mx.distributed, "all_gather", all_gather)
    return Ranks
