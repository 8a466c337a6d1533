"""Engine and adapters shared by the engine's tests."""

import pytest

from tests.models.lora_adapters.support import random_adapter, write_adapter
from tiny_llm import LLM
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.checkpoint.layout import read_model_config


@pytest.fixture(scope="session")
def llm(demo) -> LLM:
    """Engine of the demo model; tests leave it idle, with any prefixes cached."""
    return LLM(demo, kv_cache_bytes=2**25)


@pytest.fixture(scope="session")
def adapters(tmp_path_factory) -> dict[str, str]:
    """Adapters of odd ranks: for all layers, the last two layers, and the MLPs."""
    folder, config = tmp_path_factory.mktemp("adapters"), read_model_config(TARGET_PATH)
    last_two = {"rank": 3, "seed": 2, "last": 2, "size": 0.2}
    wide = {"rank": 37, "seed": 3, "only": ("up_proj", "down_proj"), "size": 0.2}
    return {
        "a": write_adapter(folder / "a", random_adapter(config, 5, seed=1, size=0.2), 5),
        "b": write_adapter(folder / "b", random_adapter(config, **last_two), 3, num_layers=2),
        "wide": write_adapter(folder / "wide", random_adapter(config, **wide), 37),
    }
