"""Sliding windows in the engine: batch invariance, freed pages, cache hits."""

from dataclasses import replace
from unittest import mock

import pytest

from tests.engine.hybrid import kv_memory_of
from tests.engine.support import (
    CASES,
    PARAGRAPH,
    assert_same_outputs,
    chat,
    run_alone,
    run_cases,
)
from tests.models.support import SIZES
from tiny_llm import LLM, SamplingParams, UserError, load
from tiny_llm.engine.execution.kv_memory import KvMemory, plan_kv_memory
from tiny_llm.engine.scheduling.config import KvGroup
from tiny_llm.engine.scheduling.events import snapshot
from tiny_llm.kv_storage.paged_storage import KvLayout
from tiny_llm.models.checkpoint.dummy import random_checkpoint
from tiny_llm.models.families.registry import read_config

WINDOW = 21
CONFIG = {
    **SIZES,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "sliding_window": WINDOW,
    "torch_dtype": "bfloat16",
}
MODELS = {
    "mistral": {**CONFIG, "model_type": "mistral"},
    # Two sizes of heads, and a layer that reads the first's keys and values.
    "gemma4": {
        **CONFIG,
        "model_type": "gemma4_text",
        "num_hidden_layers": 3,
        "global_head_dim": 64,
        "num_kv_shared_layers": 1,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": CONFIG["vocab_size"],
    },
    "qwen2": {  # the second of three layers has full attention
        **CONFIG,
        "model_type": "qwen2",
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
# Eight layers, of which every third has full attention and rows of twice the size; the last two
# have only queries and attend to the keys and values of layers 4 and 5.
SLIDING, FULL = "sliding_attention", "full_attention"
MODELS["rows of two sizes"] = {
    **MODELS["qwen2"],
    "num_hidden_layers": 8,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL, SLIDING, FULL],
}
ROWS = {
    "kv_shapes": tuple((2, 32 if i in (0, 1, 3, 4, 6) else 64) for i in range(8)),
    "kv_sources": (0, 1, 2, 3, 4, 5, 4, 5),
    "rotary_dim": 16,
}
DRAFT = {**MODELS["mistral"], "num_hidden_layers": 1, "sliding_window": 30}
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
LONG = [(7 * i + 3) % 1000 + 20 for i in range(150)]
REPETITIVE = (
    chat(PARAGRAPH + "Repeat."),
    SamplingParams(seed=3, max_tokens=50, logit_bias={300: 40, 301: 40}, ignore_eos=True),
)
WINDOW_CASES = [
    *CASES,
    REPETITIVE,
    (LONG, GREEDY),
    (LONG[:100], SamplingParams(seed=2, max_tokens=70, ignore_eos=True)),
]


@pytest.fixture(scope="module")
def tokenizer():
    return load("demo")[1]


@pytest.fixture(scope="module", params=MODELS)
def model(request, tokenizer):
    return random_model(request.param), tokenizer


def random_model(name):
    changes = ROWS if name == "rows of two sizes" else {}

    def read(config, *args):
        return replace(read_config(config, *args), **changes)

    with mock.patch("tiny_llm.models.checkpoint.dummy.read_config", read):
        return random_checkpoint(MODELS[name])


@pytest.fixture(scope="module")
def mistral(tokenizer):
    return random_checkpoint(MODELS["mistral"]), tokenizer


def one_table(*args) -> KvMemory:
    """Plans memory as if all layers had full attention."""
    with mock.patch.object(KvLayout, "from_layers", KvLayout.one_table):
        memory = plan_kv_memory(*args)
    return replace(memory, num_pages=256, groups=(KvGroup(),))


def build(model, num_pages: int = 256, **options) -> LLM:
    """Builds an engine with `num_pages` pages, by default of 8 tokens."""
    with kv_memory_of(num_pages):
        return LLM(model, **{"block_size": 8, "max_num_seqs": 4, **options})


@pytest.fixture(scope="module")
def reference(model):
    """Reference: each request alone, prefilled in one chunk, with all pages kept."""

    def make_llm(case: int) -> LLM:
        with mock.patch("tiny_llm.engine.llm.plan_kv_memory", one_table):
            return LLM(model, block_size=8, max_num_seqs=1, enable_prefix_caching=False)

    return run_alone(make_llm, WINDOW_CASES)


@pytest.mark.slow
@pytest.mark.parametrize("speculation", ["none", "ngram", "full draft", "window draft"])
def test_same_tokens_in_every_configuration(model, reference, tokenizer, speculation):
    layers = model[0].args.num_hidden_layers, model[0].args.model_type
    frees_pages = layers[1] == "mistral" and speculation != "full draft"
    # KV memory in tokens that all layers keep: less than 200 if some layers free pages.
    sizes = {(3, "qwen2"): (104, 112), (8, "qwen2"): (128, 128), (3, "gemma4_text"): (144, 152)}
    small, large = sizes.get(layers, (72, 96) if frees_pages else (200, 208))
    hits = preemptions = accepted = 0
    options = {"speculative": "ngram"} if speculation == "ngram" else {}
    if "draft" in speculation:
        draft = load("demo-draft") if speculation == "full draft" else None
        draft = draft or (random_checkpoint(DRAFT), tokenizer)
        options = {"draft_model": draft, "num_drafts": 3}
    for number, (chunk, num_tokens, page_size, (direction, gap)) in enumerate(
        ((3, small, 4, (1, 0)), (200, 1024, 16, (-1, 2)), (9, large, 8, (1, 1)))
    ):
        llm = build(
            model,
            num_tokens // page_size,
            block_size=page_size,
            max_num_batched_tokens=16 + chunk,
            enable_prefix_caching=number != 1,
            **options,
        )
        order = range(len(WINDOW_CASES))[::direction]
        actual, actual_logits = run_cases(llm, order, gap, WINDOW_CASES)
        assert_same_outputs(actual, actual_logits, reference, f"{speculation}, case {number}")
        hits += sum(output.num_cached_tokens for output in actual.values())
        preemptions += llm.scheduler.num_preemptions
        accepted += llm.runner.statistics.num_accepted_tokens
    assert hits > 0
    assert preemptions > 0 or frees_pages or layers[1] == "gemma4_text"
    assert accepted > 0 or speculation != "ngram"


@pytest.mark.parametrize("sharing", [True, False])
def test_request_larger_than_the_memory(mistral, sharing):
    """190 tokens fit into pages for 72, as pages before the window are freed."""
    [expected] = build(mistral).generate([LONG], GREEDY, use_tqdm=False)
    llm = build(mistral, 9, max_num_batched_tokens=32, enable_prefix_caching=sharing)
    assert llm.scheduler.config.pages_for(10_000) == 9
    original_run, num_held = llm.runner.run, []

    def run(step):
        [request] = llm.scheduler.running
        num_held.append(len(llm.scheduler.pages.pages_of(request)))
        state = snapshot(llm.scheduler)
        assert len(state["requests"][0]["pages"]) == num_held[-1]
        assert -1 not in state["requests"][0]["pages"] + state["tree"]["pages"]
        return original_run(step)

    with mock.patch.object(llm.runner, "run", run):
        [actual] = llm.generate([LONG], GREEDY, use_tqdm=False)
    assert actual.token_ids == expected.token_ids
    assert max(num_held) <= 9
    # While decoding, a request holds the window's pages and two partly used ones.
    assert max(num_held[-20:]) <= 1 + WINDOW // 8 + 1
    llm.scheduler.check_integrity()
    assert llm.scheduler.pages.num_available == 9


def test_preempted_requests(mistral):
    """Requests with short prompts outgrow the memory while decoding."""
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    cases = [([token, token + 1], params) for token in (20, 30, 40, 50)]
    reference = run_alone(lambda case: build(mistral), cases)
    llm = build(mistral, 12, block_size=4, max_num_batched_tokens=8)
    assert_same_outputs(*run_cases(llm, range(4), cases=cases), reference)
    assert llm.scheduler.num_preemptions > 0


def test_memory_limits_requests_if_a_step_does_not_fit(mistral):
    """If a window plus a step does not fit in memory, whole requests must fit."""
    llm = build(mistral, 8, max_num_batched_tokens=32)
    with pytest.raises(UserError, match="the KV memory holds 64"):
        llm.add_request(LONG)
    [output] = llm.generate([LONG[:40]], SamplingParams(max_tokens=24), use_tqdm=False)
    assert output.error is None


def test_second_turn_hits_although_early_pages_are_evicted(mistral):
    llm = build(mistral, 14, max_num_batched_tokens=32)
    [first] = llm.generate([LONG], GREEDY, use_tqdm=False)
    turn = [*LONG, *first.token_ids, *LONG[:20]]
    assert llm.scheduler.pages.cache.num_pages * 8 < len(LONG)
    [second] = llm.generate([turn], GREEDY, use_tqdm=False)
    assert second.num_cached_tokens >= len(LONG) + len(first.token_ids) - 8
    [cold] = build(mistral).generate([turn], GREEDY, use_tqdm=False)
    assert second.token_ids == cold.token_ids
    # A shorter prefix is not a hit, because the pages of its window have been evicted.
    [other] = llm.generate([LONG[:60]], GREEDY, use_tqdm=False)
    [cold] = build(mistral).generate([LONG[:60]], GREEDY, use_tqdm=False)
    assert other.num_cached_tokens == 0
    assert other.token_ids == cold.token_ids


def test_prompt_logprobs_in_chunks(model):
    params = SamplingParams(temperature=0, max_tokens=4, prompt_logprobs=2, ignore_eos=True)
    [whole] = build(model).generate([LONG], params, use_tqdm=False)
    llm = build(model, 32, max_num_batched_tokens=16)
    # In the second pass, the prompt is cached, but its logprobs still require recomputation.
    for _ in range(2):
        [chunked] = llm.generate([LONG], params, use_tqdm=False)
        assert chunked.prompt_logprobs == whole.prompt_logprobs


def test_full_attention_in_a_layer_or_draft_model_keeps_pages(mistral, tokenizer):
    qwen2 = random_checkpoint(MODELS["qwen2"]), tokenizer
    draft = random_checkpoint(DRAFT), tokenizer

    def windows(model, **options):
        groups = build(model, **options).scheduler.config.kv_groups
        return [(group.window, group.num_pages) for group in groups]

    assert windows(mistral) == [(WINDOW, 1)]
    assert windows(qwen2) == [(0, 1), (WINDOW, 2)]
    assert windows((random_model("rows of two sizes"), tokenizer)) == [(0, 2), (WINDOW, 2)]
    assert windows(qwen2, draft_model=draft) == [(0, 1), (WINDOW, 2)]
    assert windows(mistral, draft_model=draft) == [(30, 1)]
    assert windows(mistral, draft_model=load("demo-draft")) == [(0, 1)]


@pytest.mark.parametrize("options", [{"kv_cache_dtype": "int8"}, {"attention_backend": "flash"}])
def test_int8_pages_and_backends(model, options):
    """Chunked prefill and freed pages do not change tokens."""
    [expected] = build(model, **options).generate([LONG], GREEDY, use_tqdm=False)
    llm = build(model, 32, max_num_batched_tokens=16, **options)
    [actual] = llm.generate([LONG], GREEDY, use_tqdm=False)
    assert actual.token_ids == expected.token_ids
    if "attention_backend" in options:
        [paged] = build(model).generate([LONG], GREEDY, use_tqdm=False)
        assert actual.token_ids == paged.token_ids
