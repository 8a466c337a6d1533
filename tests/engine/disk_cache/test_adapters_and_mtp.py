"""Prefix cache on disk with LoRA adapters and the MTP layer."""

import pytest

from tests.engine.disk_cache.support import GREEDY, PROMPT, engine
from tests.engine.spec_decode.test_mtp import write_predictable
from tests.models.lora_adapters.support import write_adapters
from tiny_llm import LLM, load_weights
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.checkpoint.layout import read_model_config

LORAS = [None, "a", "b", "a"]


@pytest.mark.slow
def test_pages_are_keyed_by_adapter(tmp_path, demo):
    modules = write_adapters(tmp_path, read_model_config(TARGET_PATH), {"a": 5, "b": 3}, 0.2)
    prompts = [PROMPT] * len(LORAS)
    expected = LLM("demo", lora_modules=modules).generate(prompts, GREEDY, lora=LORAS)
    assert expected[0].token_ids != expected[1].token_ids != expected[2].token_ids
    for run in range(2):
        with engine(tmp_path, "demo", lora_modules=modules) as llm:
            outputs = llm.generate(prompts, GREEDY, lora=LORAS)
            hits = llm.disk_cache.stats.hit_tokens
        assert [output.token_ids for output in outputs] == [e.token_ids for e in expected]
        assert (hits > 0) == (run == 1)
    with engine(tmp_path, "demo", lora_modules={"a": modules["b"]}) as llm:
        assert llm.generate(PROMPT, GREEDY, lora="a")[0].token_ids == expected[2].token_ids
        assert llm.disk_cache.stats.hit_tokens == 0


def test_mtp_drafts_from_disk(tmp_path):
    model = load_weights(write_predictable(tmp_path / "model", noise=0.1), mtp=True)
    [expected] = LLM(model).generate(PROMPT, GREEDY)
    for run in range(2):
        with engine(tmp_path, model, speculative="mtp", num_drafts=2) as llm:
            [output] = llm.generate(PROMPT, GREEDY)
            assert output.token_ids == expected.token_ids
            assert (llm.disk_cache.stats.hit_tokens > 0) == (run == 1)
            assert llm.runner.statistics.num_accepted_tokens > 0
