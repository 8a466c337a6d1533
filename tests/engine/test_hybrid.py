"""Hybrid models: same tokens in every configuration, cache hits, memory."""

import itertools

import pytest

from tests.engine.hybrid import (
    KV_BYTES_PER_TOKEN,
    STATE_BYTES,
    agent_transcript,
    build,
    conversation,
    run_transcript,
    write_hybrid,
)
from tests.engine.support import (
    MORE_CASES,
    PARAGRAPH,
    assert_same_outputs,
    chat,
    run_alone,
    run_cases,
)
from tests.models.support import FAMILIES
from tiny_llm import LLM, SamplingParams, UserError, load
from tiny_llm.engine.scheduling.events import snapshot
from tiny_llm.models import load_weights
from tiny_llm.models.checkpoint.dummy import random_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
REPETITIVE = (
    chat("Repeat the word."),
    SamplingParams(seed=3, max_tokens=40, logit_bias={300: 40, 301: 40}, ignore_eos=True),
)
CASES = [*MORE_CASES, REPETITIVE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_hybrid(tmp_path_factory.mktemp("hybrid") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return load_weights(str(folder))


@pytest.fixture(scope="module")
def model_with_mtp(tmp_path_factory):
    folder = write_hybrid(tmp_path_factory.mktemp("hybrid") / "mtp", mtp=True)
    return load_weights(str(folder), mtp=True)


@pytest.fixture(scope="module")
def drafts(model, tmp_path_factory):
    other = write_hybrid(tmp_path_factory.mktemp("hybrid") / "draft", num_hidden_layers=8)
    return {
        "attention draft": load("demo-draft"),
        "hybrid draft": load_weights(str(other)),
        "the model as draft": model,
    }


@pytest.fixture(scope="module")
def reference(model):
    """Reference outputs and logits: each request alone, prefilled in one chunk."""
    options = {"max_num_seqs": 1, "enable_prefix_caching": False}
    return run_alone(lambda case: build(model, **options), CASES)


SPECULATION = ("none", "ngram", "mtp", "attention draft", "hybrid draft", "the model as draft")


@pytest.mark.slow
@pytest.mark.parametrize("speculation", SPECULATION)
@pytest.mark.parametrize("slots", [2, 5, 20])
def test_same_tokens_in_every_configuration(
    model, model_with_mtp, drafts, reference, speculation, slots
):
    hits = preemptions = accepted = 0
    for number, (chunk, tokens, page, (direction, gap)) in enumerate(
        ((3, 96, 4, (1, 0)), (200, 96, 4, (-1, 2)), (3, 2048, 32, (-1, 2)), (200, 2048, 4, (1, 1)))
    ):
        options = {"speculative": speculation} if speculation in ("ngram", "mtp") else {}
        if speculation in drafts:
            options = {"draft_model": drafts[speculation], "num_drafts": 3}
        llm = build(
            model_with_mtp if speculation == "mtp" else model,
            tokens,
            slots,
            block_size=page,
            max_num_seqs=4,
            max_num_batched_tokens=32 + chunk,
            enable_prefix_caching=number != 2,
            **options,
        )
        actual, actual_logits = run_cases(llm, range(len(CASES))[::direction], gap, CASES)
        context = f"{speculation}, {slots} slots, case {number}"
        assert_same_outputs(actual, actual_logits, reference, context)
        hits += sum(output.num_cached_tokens for output in actual.values())
        preemptions += llm.scheduler.num_preemptions
        accepted += llm.runner.statistics.num_accepted_tokens
        assert llm.scheduler.pages.states.counts().used == 0
    assert hits > 0
    # With two slots, only one request runs at a time, so none is preempted.
    assert preemptions > 0 or slots == 2
    assert accepted > 10 or speculation == "none" or slots == 2
    assert accepted > 200 or speculation != "the model as draft" or slots < 20


@pytest.mark.slow
@pytest.mark.parametrize("turns", ["chat", "chat with thinking", "agent"])
def test_every_turn_hits_as_many_tokens_as_an_attention_model(model, turns):
    thinking = turns == "chat with thinking"
    transcript = agent_transcript(7) if turns == "agent" else conversation(8, thinking)
    transcript = list(transcript)
    attention = run_transcript(LLM("demo", kv_cache_bytes=2**25), transcript, thinking)
    for slots in (4, 40):
        llm = build(model, 4096, slots)
        hybrid = run_transcript(llm, transcript, thinking)
        assert hybrid == attention
        page_size = llm.scheduler.config.page_size
        for (previous, _), (_, cached) in itertools.pairwise(hybrid):
            # The next turn may change up to 16 tokens, the generation prompt.
            assert cached >= previous - 16 - page_size


@pytest.mark.parametrize("megabytes", [0.25, 1, 4])
def test_pages_states_and_checkpoints_fit_the_memory(model, megabytes):
    memory = int(megabytes * 2**20)
    llm = LLM(model, kv_cache_bytes=memory, block_size=16, speculative="ngram", max_num_seqs=8)
    for number in range(20):
        llm.add_request([number, *range(200)], GREEDY)
    while llm.has_unfinished_requests:
        llm.step()
        assert llm.runner.target.nbytes <= memory
    assert llm.scheduler.pages.states.counts().checkpoints > 0
    llm = LLM(model, kv_cache_bytes=memory, block_size=16, max_num_seqs=8)
    llm.reserve()
    assert 0.85 * memory < llm.runner.target.nbytes <= memory


@pytest.mark.parametrize("block_size", [8, pytest.param(32, marks=pytest.mark.slow)])
def test_many_conversations_hit_as_much_as_with_attention(model, block_size):
    """12 chats in turn, whose reasoning the template drops, with the default KV memory."""

    def turns(number):
        for messages, reply in conversation(4, True):
            content = f"Chat {number}: {messages[0]['content']}"
            yield [{**messages[0], "content": content}, *messages[1:]], reply

    def cached_tokens(name):
        llm = LLM(name, block_size=block_size, max_model_len=2048)
        chats = [turns(number) for number in range(12)]
        rounds = [
            [run_transcript(llm, [next(chat)], thinking=True)[0][1] for chat in chats]
            for _ in range(3)
        ]
        return rounds[1:]

    sizes = {"vocab_size": 4096, "max_position_embeddings": 2048}
    small = random_checkpoint({**FAMILIES["qwen3"], **sizes}), model[1]
    attention, hybrid = cached_tokens(small), cached_tokens(model)
    assert sum(map(sum, hybrid)) >= 0.95 * sum(map(sum, attention))
    assert hybrid[0] == attention[0], "expected the second turns to hit the same tokens"


def test_memory_passes_between_pages_and_states(model):
    """Long prompts fill the memory with pages, then chats with states, then prompts again."""
    memory = 2**20
    llm = LLM(model, kv_cache_bytes=memory, block_size=16, max_model_len=2048)

    def counts():
        return llm.scheduler.pages.allocator.num_used, llm.scheduler.pages.states.num_used

    def serve(prompts):
        for prompt in prompts:
            llm.generate([prompt], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
            assert llm.runner.nbytes <= memory
            llm.scheduler.check_integrity()
        return counts()

    long_prompts = [[number, *range(3, 1800)] for number in range(5)]
    short_prompts = [[number, *range(3, 30)] for number in range(200)]
    pages, _ = serve(long_prompts)
    fewer_pages, states = serve(short_prompts)
    assert fewer_pages < pages
    more_pages, fewer_states = serve([prompt[::-1] for prompt in long_prompts])
    assert more_pages > fewer_pages
    assert fewer_states < states


def test_too_little_memory_is_rejected(model):
    page_bytes = 32 * KV_BYTES_PER_TOKEN
    needed = page_bytes + -(-2 * STATE_BYTES // page_bytes) * page_bytes
    with pytest.raises(UserError) as error:
        LLM(model, kv_cache_bytes=needed - 1)
    assert str(error.value) == (
        f"kv_cache_bytes must be at least {needed} (a page of 32 tokens and 2 state slots of "
        f"{STATE_BYTES} bytes), got {needed - 1}."
    )
    [output] = LLM(model, kv_cache_bytes=needed).generate([[5, 6, 7]], GREEDY)
    [expected] = build(model).generate([[5, 6, 7]], GREEDY)
    assert output.token_ids == expected.token_ids


def test_draft_model_with_states_shares_the_memory(model):
    llm = LLM(model, draft_model=model, kv_cache_bytes=2**20, max_num_seqs=4)
    config = llm.scheduler.config
    assert config.num_pages * config.page_size * 2 * KV_BYTES_PER_TOKEN <= 2**20
    llm.reserve()
    draft = llm.runner.draft.model
    assert llm.runner.target.nbytes + draft.nbytes <= 2**20
    assert draft.nbytes == llm.runner.target.nbytes


def test_snapshot_lists_pages_with_a_checkpoint(model):
    llm = build(model, block_size=8)
    llm.generate([PARAGRAPH], GREEDY)
    actual = snapshot(llm.scheduler)
    states = actual["states"]
    assert set(states["checkpoint_pages"]) <= set(actual["tree"]["pages"])
    assert len(states["checkpoint_pages"]) == states["checkpoints"] == states["cached"] > 0
    assert "states" not in snapshot(LLM("demo", kv_cache_bytes=2**24).scheduler)
