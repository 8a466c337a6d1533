"""Tokens and logprobs do not depend on cache hits in memory or on disk."""

import threading

import pytest

from tests.engine.disk_cache.support import (
    GREEDY,
    PROMPT,
    engine,
    generate_one,
    open_llm,
    page_files,
)
from tests.engine.hybrid import build, conversation, run_transcript, write_hybrid
from tests.engine.support import MORE_CASES, PARAGRAPH, assert_same_outputs, chat, finish, run_cases
from tests.engine.test_sliding_window import WINDOW, WINDOW_CASES, random_model
from tests.support import object_schema
from tiny_llm import LLM, SamplingParams, StructuredOutputs, load
from tiny_llm.models import load_weights

CONFIGURATIONS = {
    "plain": {},
    "int8": {"kv_cache_dtype": "int8"},
    "small pages": {"block_size": 8},
    "reference": {"attention_backend": "reference"},
    "draft model": {"draft_model": "demo-draft"},
    "ngram": {"speculative": "ngram"},
    "fair": {"scheduling_policy": "fair", "step_time_target": 0.05},
    "two ranks": {"tensor_parallel_size": 2},
}
CONFIGURATIONS["two ranks, int8, drafts"] = {
    **CONFIGURATIONS["two ranks"], **CONFIGURATIONS["int8"], **CONFIGURATIONS["draft model"]
}  # fmt: skip


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    return load_weights(str(write_hybrid(tmp_path_factory.mktemp("hybrid") / "model")))


def serve_cold(model, cases, make_llm=LLM, **options):
    llm = make_llm(model, enable_prefix_caching=False, seed=1, **options)
    return run_cases(llm, range(len(cases)), cases=cases)


def serve_with_disk(directory, model, cases, expected, steps_between=0, times=1, **options):
    """Serves the cases in a new engine, with outputs `expected`; returns it and its statistics."""
    with engine(directory, model, seed=1, **options) as llm:
        for _ in range(times):
            actual = run_cases(llm, range(len(cases)), steps_between, cases)
            assert_same_outputs(*actual, expected, f"{steps_between} steps apart")
        return llm, llm.disk_cache.stats


@pytest.mark.slow
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_cold_memory_and_disk_are_bitwise_equal(tmp_path, demo, configuration):
    options = CONFIGURATIONS[configuration]
    # With ranks, a model name, because each rank loads its own shard.
    model = "demo" if "tensor_parallel_size" in options else demo
    cold = serve_cold(model, MORE_CASES, **options)
    _, stats = serve_with_disk(tmp_path, model, MORE_CASES, cold, times=2, **options)
    assert stats.hit_tokens == 0
    for steps_between in (0, 2):
        _, stats = serve_with_disk(tmp_path, model, MORE_CASES, cold, steps_between, **options)
        assert stats.hit_tokens > 0
        assert stats.num_errors == 0


@pytest.mark.parametrize(
    ("model_type", "options"),
    [
        ("qwen2", {"block_size": 8}),
        ("mistral", {"block_size": 8}),
        ("rows of two sizes", {"kv_cache_dtype": "int8", "block_size": 4}),
    ],
)
def test_layers_with_a_window(tmp_path, model_type, options):
    """The window's pages are read for the end of the prefix only.

    Mistral, without full attention, keeps all pages.
    """
    model = random_model(model_type), load("demo")[1]
    cases = [*WINDOW_CASES[:2], *WINDOW_CASES[-2:]]
    cold = serve_cold(model, cases, **options)
    for run_index in range(2):
        llm, stats = serve_with_disk(tmp_path, model, cases, cold, 2 * run_index, **options)
        windows = [group.window for group in llm.scheduler.config.kv_groups]
        assert windows == ([0] if model_type == "mistral" else [0, WINDOW])
        assert (stats.hit_tokens > 0) == (run_index > 0)
    for file in page_files(tmp_path)[::3]:
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    _, stats = serve_with_disk(tmp_path, model, cases, cold, 1, **options)
    assert stats.num_errors > 0


@pytest.mark.parametrize(
    ("slots", "has_draft"),
    [*(pytest.param(slots, False, marks=pytest.mark.slow) for slots in (3, 20)), (20, True)],
)
def test_hybrid_model(tmp_path, hybrid, slots, has_draft):
    cold = serve_cold(hybrid, MORE_CASES, build)
    options = {"build": build, "slots": slots} | ({"draft_model": hybrid} if has_draft else {})
    for run_index in range(2 if has_draft else 3):
        _, stats = serve_with_disk(tmp_path, hybrid, MORE_CASES, cold, run_index, **options)
        hits = stats.hit_tokens
        assert hits > 0 or run_index == 0
        # With few slots, the first run may read states that were evicted from memory.
        assert hits == 0 or run_index > 0 or not has_draft


@pytest.mark.slow
def test_preemption_with_pages_on_disk(tmp_path, demo):
    """With 15 pages of KV memory, requests are preempted and read from disk."""
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True, logprobs=1)
    cases = [(PARAGRAPH[-150 - 10 * i :], params) for i in range(5)]
    cold = serve_cold(demo, cases)
    page_bytes = LLM(demo).runner.target.model.kv_bytes_per_token * 16
    options = {"block_size": 16, "kv_cache_bytes": page_bytes * 15, "max_num_batched_tokens": 64}
    runs = [
        serve_with_disk(tmp_path, demo, cases, cold, run_index, **options) for run_index in range(4)
    ]
    assert sum(llm.scheduler.num_preemptions for llm, _ in runs) > 0
    assert sum(stats.hit_tokens for _, stats in runs) > 0


@pytest.mark.slow
@pytest.mark.parametrize("thinking", [False, True])
def test_hybrid_conversation_continues_after_each_restart(tmp_path, hybrid, thinking):
    """A finished request stores the state after its output, too."""
    turns = list(conversation(5, thinking))
    expected = run_transcript(build(hybrid, tokens=4096, slots=20), turns, thinking)
    actual = []
    for run_index in turns:
        with engine(tmp_path, hybrid, build=build, tokens=4096, slots=20) as llm:
            actual += run_transcript(llm, [run_index], thinking)
    assert actual == expected


LONGER = f"{PROMPT} {PARAGRAPH}"
NUMBER = StructuredOutputs(json=object_schema(n={"type": "integer"}))


@pytest.mark.parametrize(
    ("prompt", "params", "num_cached"),
    [
        (PROMPT, SamplingParams(seed=3, max_tokens=20, structured_outputs=NUMBER, logprobs=1), 1),
        (PROMPT, SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=1), 0),  # recomputed
        (LONGER, GREEDY, 1),
    ],
    ids=["grammar", "prompt logprobs", "partly shared prefix"],
)
def test_restart(tmp_path, demo, prompt, params, num_cached):
    expected = generate_one(LLM(demo), prompt, params)
    with engine(tmp_path, demo) as llm:
        ids = llm.tokenizer.encode(PROMPT)
        while llm.precompute(ids):
            pass
    with engine(tmp_path, demo) as llm:
        output = generate_one(llm, prompt, params)
    assert output.num_cached_tokens == num_cached * ((len(ids) - 1) // 32 * 32)
    for name in ("token_ids", "logprobs", "prompt_logprobs"):
        assert getattr(output, name) == getattr(expected, name), name


def test_pages_evicted_from_memory_are_read(tmp_path, demo):
    page_bytes = LLM(demo).runner.target.model.kv_bytes_per_token * 32
    with engine(tmp_path, demo, kv_cache_bytes=page_bytes * 16) as llm:
        first = generate_one(llm)
        for number in range(6):
            generate_one(llm, f"Number {number}. {PROMPT}")
        assert llm.disk_cache._io.flush(30)
        again = generate_one(llm)
        assert again.num_cached_tokens > 0
        assert llm.disk_cache.stats.hit_tokens >= again.num_cached_tokens
    assert (again.token_ids, again.logprobs) == (first.token_ids, first.logprobs)


def test_shared_prefix_is_read_once(tmp_path, demo, stored):
    with engine(tmp_path, demo) as llm:
        outputs = llm.generate([PROMPT] * 5, GREEDY)
        stats = llm.disk_cache.stats
        assert stats.hit_tokens == outputs[0].num_cached_tokens > 0
        assert {output.num_cached_tokens for output in outputs} == {stats.hit_tokens}
        assert llm.scheduler.num_cached_tokens == 5 * stats.hit_tokens


def test_other_requests_proceed_while_pages_are_read(tmp_path, demo, monkeypatch, stored):
    with engine(tmp_path, demo) as llm:
        may_read, store = threading.Event(), llm.disk_cache._store
        read = store.read

        def read_later(*args):
            assert may_read.wait(60)
            return read(*args)

        monkeypatch.setattr(store, "read", read_later)
        llm.add_request(PROMPT, GREEDY, request_id="on disk")
        llm.add_request(chat("Hello"), GREEDY, request_id="other")
        finished = []
        while "other" not in finished:
            finished += [item.request_id for item in llm.step() if item.finish_reason]
        assert "on disk" not in finished
        may_read.set()
        assert finish(llm)["on disk"].token_ids == stored.token_ids
        assert llm.disk_cache.stats.hit_tokens > 0


def test_abort_and_timeout_while_pages_are_read(tmp_path, demo, stored):
    with engine(tmp_path, demo) as llm:
        with llm.disk_cache._io._changed:
            llm.add_request(PROMPT, GREEDY, request_id="aborted")
            llm.add_request(PROMPT + PROMPT, GREEDY, request_id="late", timeout=1e-6)
            llm.step()
            assert llm.scheduler.running[0].num_loading > 0
            assert llm.abort("aborted")
        finish(llm)
        assert generate_one(llm).token_ids == stored.token_ids


def test_embeddings_are_supported(tmp_path):
    expected = LLM("demo", task="embed").embed([PROMPT])
    for run_index in range(2):
        llm = open_llm(tmp_path, "demo", task="embed")
        assert llm.embed([PROMPT]) == expected
        assert (llm.disk_cache.stats.hit_tokens > 0) == (run_index > 0)
        llm.close()
