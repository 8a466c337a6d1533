"""Attention backends give equal outputs, and unknown names are rejected."""

import numpy as np
import pytest

from tests.models.support import (
    FAMILIES,
    GEMMA4,
    GEMMA4_MIXTURE,
    HYBRID,
    name_of,
    run_changing_batch,
    run_ragged,
    run_sequence,
)
from tests.support import as_numpy, assert_close, assert_same_bits
from tiny_llm import LLM, SamplingParams, UserError
from tiny_llm.models import ATTENTION_BACKENDS, serving_model
from tiny_llm.models.checkpoint.dummy import random_checkpoint
from tiny_llm.models.families.attention_backends import COMPARISON_BACKENDS

WINDOW = {**FAMILIES["ministral3"], "sliding_window": 9}


@pytest.mark.parametrize("run", [run_sequence, run_changing_batch, run_ragged])
@pytest.mark.parametrize(
    "config", [*map(FAMILIES.get, ("qwen3", "llama")), WINDOW, GEMMA4, HYBRID], ids=name_of
)
def test_gathered_and_paged_attention_are_bitwise_equal(config, run):
    checkpoint = random_checkpoint({**config, "quantization": {"mode": "mxfp4"}})
    of = {name: run(serving_model("it", checkpoint, 16, name)) for name in ATTENTION_BACKENDS}
    assert_same_bits(of["flash"], of["paged"], "flash compared with paged")
    assert_close(of["reference"], of["paged"], "reference compared with paged", ulps=16)


@pytest.mark.parametrize(
    ("backend", "kv_cache_dtype"), [("flash", "auto"), ("reference", "auto"), ("reference", "int8")]
)
@pytest.mark.parametrize("config", [FAMILIES["qwen3"], FAMILIES["gpt_oss"]], ids=name_of)
def test_engine_output_with_each_backend(demo, config, backend, kv_cache_dtype, monkeypatch):
    calls, attend = [], COMPARISON_BACKENDS[backend]
    monkeypatch.setitem(
        COMPARISON_BACKENDS, backend, lambda *args: calls.append(backend) or attend(*args)
    )
    pair = random_checkpoint({**config, "torch_dtype": "float32"}), demo[1]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [[(7 * i + s) % 211 for i in range(n)] for s, n in enumerate((40, 3, 40))]
    outputs = []
    for chosen in ("paged", backend):
        assert not calls
        options = {"attention_backend": chosen, "kv_cache_dtype": kv_cache_dtype}
        llm = LLM(pair, block_size=16, **options)
        assert len(llm.scheduler.config.kv_groups) == (2 if "sliding_window" in config else 1)
        outputs.append([o.token_ids for o in llm.generate(prompts, params, use_tqdm=False)])
    assert outputs[0] == outputs[1]
    assert calls


@pytest.mark.parametrize("config", [GEMMA4, GEMMA4_MIXTURE, FAMILIES["gpt_oss"]], ids=name_of)
@pytest.mark.parametrize("run", [run_sequence, run_changing_batch])
def test_int8_pages(config, run):
    checkpoint = random_checkpoint({**config, "torch_dtype": "float32"})
    paged, reference = (
        as_numpy(run(serving_model("it", checkpoint, 16, backend, "int8")))
        for backend in ("paged", "reference")
    )
    # Different roundings in float32 may round a key or value to another 8-bit integer.
    assert np.sqrt(np.mean((paged - reference) ** 2)) < 2**-6 * np.sqrt(np.mean(reference**2))


@pytest.mark.parametrize("given", ["FLASH_ATTN", "", None, ["paged"]])
def test_unknown_backend_is_rejected(given):
    with pytest.raises(UserError, match="must be 'paged', 'flash' or 'reference', got"):
        LLM("demo", attention_backend=given)
