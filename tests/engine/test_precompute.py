"""`LLM.precompute`: pages computed ahead of a request."""

import pytest

from tests.engine.hybrid import write_hybrid
from tests.engine.spec_decode.test_mtp import write_predictable
from tests.engine.support import PARAGRAPH, assert_idle, finish
from tiny_llm import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def build(**options) -> LLM:
    return LLM("demo", kv_cache_bytes=2**24, **options)


def precompute_all(llm, ids) -> int:
    steps = 1
    while llm.precompute(ids):
        steps += 1
    return steps


@pytest.mark.parametrize("kind", ["plain", "draft model", "hybrid", "mtp"])
def test_precomputed_pages_are_hit_without_changing_outputs(tmp_path, kind):
    model, options = "demo", {"draft_model": "demo-draft"} if kind == "draft model" else {}
    if kind == "hybrid":
        model = str(write_hybrid(tmp_path / "model"))
    elif kind == "mtp":
        model, options = write_predictable(tmp_path / "model", noise=0.1), {"speculative": "mtp"}
    llm = LLM(model, kv_cache_bytes=2**24, **options)
    ids = llm.tokenizer.encode(PARAGRAPH * 3)
    size = llm.scheduler.config.page_size
    assert len(ids) > 2 * size
    assert precompute_all(llm, ids) == len(ids) // size
    assert (llm.scheduler.num_prompt_tokens, llm.scheduler.num_cached_tokens) == (0, 0)
    assert_idle(llm)
    [warm] = llm.generate([*ids, 17], GREEDY)
    assert warm.num_cached_tokens == len(ids) // size * size
    [cold] = LLM(model, kv_cache_bytes=2**24).generate([*ids, 17], GREEDY)
    assert warm.token_ids == cold.token_ids
    assert not llm.precompute(ids)  # all pages are cached
    assert llm.runner.statistics.num_accepted_tokens > 0 or kind in ("plain", "hybrid")


def test_precompute_is_a_no_op_when_busy_or_too_long():
    llm = build()
    ids = llm.tokenizer.encode(PARAGRAPH * 3)
    llm.add_request("RoPE is", GREEDY)
    assert not llm.precompute(ids)
    finish(llm)
    assert not llm.precompute(ids[: llm.scheduler.config.page_size - 1])  # no full page
    assert not build(enable_prefix_caching=False).precompute(ids)
    # One step computes only half a page.
    assert not build(max_num_batched_tokens=16, max_num_seqs=8).precompute(ids)
    # The KV memory holds a single page.
    tiny = LLM("demo", kv_cache_bytes=2**24 // llm.scheduler.config.num_pages)
    assert precompute_all(tiny, ids) <= 2
    tiny.scheduler.check_integrity()


def test_failed_precompute_is_harmless(monkeypatch, caplog):
    llm = build()
    ids = llm.tokenizer.encode(PARAGRAPH * 3)

    def fail(step):
        raise RuntimeError("no")

    with monkeypatch.context() as patched:
        patched.setattr(llm.runner, "run", fail)
        assert not llm.precompute(ids)
    assert "failed to precompute a prefix cache page" in caplog.text
    llm.scheduler.check_integrity()
    assert llm.precompute(ids)
