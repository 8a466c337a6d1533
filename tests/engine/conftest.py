"""Engine shared by the engine's tests."""

import pytest

from tiny_llm import LLM


@pytest.fixture(scope="session")
def llm(demo) -> LLM:
    """Engine of the demo model; tests leave it idle, with any prefixes cached."""
    return LLM(demo, kv_cache_bytes=2**25)
