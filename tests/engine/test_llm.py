"""`LLM`, the public interface, end to end."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.support import PARAGRAPH, assert_idle, chat, finish
from tiny_llm import LLM, SamplingParams, UserError, load
from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine import factory

GREEDY = SamplingParams(temperature=0, max_tokens=60)
QUESTIONS = ["What is the capital of Japan?", "What is 17 + 25?", "What is the KV cache?"]
CHATS = [chat(question) for question in QUESTIONS]
ANSWERS = [
    "The capital of Japan is Tokyo.",
    "17 + 25 = 42.",
    "The KV cache stores the keys and values of past tokens, so that they are not computed again.",
]


def engine(demo, **options) -> LLM:
    return LLM(demo, **{"kv_cache_bytes": 2**24, **options})


def test_generate_preserves_prompt_order(demo):
    llm = engine(demo, max_num_seqs=2)
    assert llm.generate([]) == []
    outputs = llm.generate(CHATS, GREEDY)
    assert [output.text for output in outputs] == ANSWERS
    assert {output.finish_reason for output in outputs} == {"stop"}
    assert all(output.token_ids[-1] in demo[1].eos_token_ids for output in outputs)
    assert_idle(llm)


@pytest.mark.slow
def test_sampling_params_per_prompt(either_device, demo):
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (1, 2, 3)]
    outputs = engine(demo).generate(CHATS, params)
    assert [len(output.token_ids) for output in outputs] == [1, 2, 3]
    assert {output.finish_reason for output in outputs} == {"length"}
    with pytest.raises(UserError, match="one SamplingParams per prompt, got 2 for 3 prompts"):
        engine(demo).generate(["a", "b", "c"], params[:2])


def test_invalid_request_does_not_affect_others(demo):
    llm = engine(demo, kv_cache_bytes=2 * 2**20)  # KV memory of 256 tokens
    prompts = ["", chat(QUESTIONS[0]), [1] * 300, [5000], chat(QUESTIONS[1])]
    outputs = llm.generate(prompts, GREEDY)
    assert [output.text for output in outputs] == ["", ANSWERS[0], "", "", ANSWERS[1]]
    reasons = [output.finish_reason for output in outputs]
    assert reasons == ["error", "stop", "error", "error", "stop"]
    assert outputs[0].error == "the prompt is empty; give at least one token."
    assert "the KV memory holds 256" in outputs[2].error
    assert outputs[3].error == "token ids in the prompt must be from 0 to 4095, got 5000."
    assert_idle(llm)


def test_invalid_token_id_and_invalid_params(llm):
    for wrong in ("a", [], None, 2.0, True):
        outputs = llm.generate([[5, wrong], [5]], SamplingParams(max_tokens=1))
        assert outputs[0].error == f"prompt[1] must be an integer token id, got {wrong!r}."
        assert outputs[1].finish_reason == "length"
    [output] = llm.generate([[-1]])
    assert output.error == "token ids in the prompt must be from 0 to 4095, got -1."
    [output] = llm.generate([[1] * 100_000])
    assert output.error.startswith("the prompt has 100000 tokens, but the model's context length")
    with pytest.raises(
        UserError, match="sampling_params must be a SamplingParams, got {'max_tokens': 3}"
    ):
        llm.add_request("a", {"max_tokens": 3})
    for params in ({"max_tokens": 3}, [{"max_tokens": 3}]):
        with pytest.raises(UserError, match="must be a SamplingParams, got"):
            llm.generate("a", params)
    assert_idle(llm)


def test_stop_token_ids_and_ignore_eos(llm):
    [plain] = llm.generate(chat(QUESTIONS[0]), GREEDY)
    third = plain.token_ids[2]
    params = SamplingParams(temperature=0, stop_token_ids=[third])
    [output] = llm.generate(chat(QUESTIONS[0]), params)
    assert output.token_ids == plain.token_ids[:3]
    assert output.outputs[0].stop_reason == third
    [ignoring_eos] = llm.generate(
        chat(QUESTIONS[0]), SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    )
    assert (len(ignoring_eos.token_ids), ignoring_eos.finish_reason) == (40, "length")
    assert ignoring_eos.token_ids[: len(plain.token_ids)] == plain.token_ids


@pytest.mark.slow
def test_logit_bias_and_logprobs(either_device, demo):
    params = SamplingParams(temperature=0, max_tokens=3, logit_bias={77: 100}, logprobs=2)
    [output] = engine(demo).generate(chat(QUESTIONS[0]), params)
    assert output.token_ids == [77, 77, 77]
    for logprobs in output.logprobs:
        assert len(logprobs) == 3, "expected the two most likely tokens and the sampled one"
        assert list(logprobs)[-1] == 77
        assert list(logprobs.values()) == sorted(logprobs.values(), reverse=True)
    with pytest.raises(UserError, match="token ids in logit_bias must be from 0 to 4095, got 4096"):
        engine(demo).add_request("a", SamplingParams(logit_bias={4096: 1}))


def test_completions_share_the_prompt_pages(demo):
    llm = engine(demo, block_size=4)
    params = SamplingParams(temperature=2, top_k=50, seed=3, n=3, max_tokens=12, ignore_eos=True)
    name = llm.add_request(chat(PARAGRAPH), params)
    llm.step()
    whole = llm.step()[0].request_output
    pages = len(whole.prompt_token_ids) // 4
    assert llm.scheduler.pages.allocator.num_used <= pages + 3 * 2
    assert llm.scheduler.pages.counts(llm.scheduler.running).shared >= pages - 1
    finish(llm)
    assert whole.request_id == name
    assert [output.index for output in whole.outputs] == [0, 1, 2]
    assert len({tuple(output.token_ids) for output in whole.outputs}) == 3
    [again] = engine(demo).generate(chat(PARAGRAPH), params)
    assert [o.token_ids for o in again.outputs] == [o.token_ids for o in whole.outputs]
    assert_idle(llm)


def test_engine_seed_is_the_default_sampling_seed(demo):
    params = SamplingParams(temperature=3, max_tokens=12, ignore_eos=True)

    def sample(seed: int | None) -> list[list[int]]:
        outputs = engine(demo, seed=seed).generate([[17], [17]], params)
        return [output.token_ids for output in outputs]

    first = sample(0)
    assert first[0] != first[1], "requests must have independent random streams"
    assert sample(0) == first
    assert sample(1) != first
    assert engine(demo, seed=None).seed != engine(demo, seed=None).seed
    assert len(sample(None)[0]) == 12


def test_stream_yields_every_token(llm):
    texts, tokens = {}, {}
    for update in llm.stream(CHATS, GREEDY):
        texts[update.request_id] = texts.get(update.request_id, "") + update.text
        tokens[update.request_id] = [*tokens.get(update.request_id, []), *update.token_ids]
        assert len(update.token_ids) == 1
        assert tokens[update.request_id] == update.request_output.token_ids
        assert texts[update.request_id] == update.request_output.text
    assert list(texts.values()) == ANSWERS
    assert_idle(llm)


def test_closed_and_unused_streams_leave_no_requests(llm):
    stream = llm.stream(CHATS, GREEDY)
    next(stream)
    stream.close()
    assert_idle(llm)
    stream = llm.stream(["a", "b"], GREEDY)
    assert_idle(llm)
    del stream
    assert llm.step() == []
    with pytest.raises(UserError, match="one SamplingParams per prompt, got 2 for 1 prompts"):
        llm.stream(["a"], [GREEDY, GREEDY])
    with pytest.raises(UserError, match="a prompt must be"):
        llm.stream(3)


def fail_on_third_call(monkeypatch, owner, name):
    function, calls = getattr(owner, name), itertools.count(1)

    def call(*args, **kwargs):
        if next(calls) == 3:
            raise RuntimeError("the memory is on fire")
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


def test_failed_add_aborts_earlier_prompts(demo, monkeypatch):
    llm = engine(demo)
    fail_on_third_call(monkeypatch, llm, "add_tokenized_request")
    with pytest.raises(RuntimeError, match="the memory is on fire"):
        llm.generate(["a", "b", "c"], GREEDY)
    assert_idle(llm)


def test_add_and_abort_between_steps(demo):
    llm = engine(demo, max_num_seqs=2)
    first = llm.add_request(chat(QUESTIONS[0]), GREEDY, request_id="1")
    llm.step()
    second = llm.add_request(chat(QUESTIONS[1]), GREEDY)
    third = llm.add_request(chat(QUESTIONS[2]), GREEDY)
    assert first == "1"
    assert len({first, second, third}) == 3, "generated ids must avoid the caller's"
    with pytest.raises(UserError, match="request_id '1' is already used"):
        llm.add_request("a", request_id="1")
    llm.step()
    assert llm.abort(first)
    assert not llm.abort(first)
    outputs = finish(llm)
    reasons = [outputs[name].finish_reason for name in (first, second, third)]
    assert reasons == ["abort", "stop", "stop"]
    assert outputs[first].token_ids, "the partial output must be kept"
    assert [outputs[name].text for name in (second, third)] == ANSWERS[1:]
    assert llm.step() == []
    assert_idle(llm)


def test_abort_ends_all_completions(demo):
    llm = engine(demo, max_num_seqs=2)
    name = llm.add_request([5] * 9, SamplingParams(n=4, max_tokens=40, ignore_eos=True))
    for _ in range(3):
        llm.step()
    assert llm.abort(name)
    update = llm.step()
    assert [output.index for output in update] == [0, 1, 2, 3]
    assert {output.finish_reason for output in update} == {"abort"}
    assert update[0].request_output.finished
    assert_idle(llm)


def test_generate_does_not_consume_step_outputs(llm):
    name = llm.add_request(chat(QUESTIONS[0]), GREEDY)
    [output] = llm.generate(chat(QUESTIONS[1]), GREEDY)
    assert output.text == ANSWERS[1]
    text = ""
    while llm.has_unfinished_requests:
        for update in llm.step():
            assert update.request_id == name
            text += update.text
    assert text == ANSWERS[0]


def test_failed_step_fails_only_its_requests(demo, monkeypatch):
    llm = engine(demo, max_num_seqs=2)
    fail_on_third_call(monkeypatch, llm.runner.target, "logits")
    outputs = llm.generate(CHATS, GREEDY)
    assert [output.finish_reason for output in outputs] == ["error", "error", "stop"]
    assert outputs[0].error == "the step failed: the memory is on fire."
    assert outputs[2].text == ANSWERS[2]
    assert_idle(llm)
    [output] = llm.generate(chat(QUESTIONS[0]), GREEDY)
    assert output.text == ANSWERS[0]


def test_metric_timestamps_are_ordered(demo):
    outputs = engine(demo, max_num_seqs=1).generate(CHATS, GREEDY)
    for output in outputs:
        metrics = output.metrics
        names = ("arrival", "first_scheduled", "first_token", "finished")
        times = [getattr(metrics, f"{name}_time") for name in names]
        assert times == sorted(times)
        assert metrics.ttft >= metrics.queue_seconds >= 0
    waits = [output.metrics.queue_seconds for output in outputs]
    assert waits == sorted(waits), "requests must be scheduled in order of arrival"


@pytest.mark.parametrize("num_requests", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_memory_stays_within_budget(demo, num_requests):
    """Memory is at most weights, KV memory and a constant for activations."""
    budget = 2**24  # KV memory of 2,048 tokens
    activations = 2**24  # bytes for 64 tokens, including logits
    rng = np.random.default_rng(5)
    mx.clear_cache()
    weights = mx.get_active_memory()
    mx.reset_peak_memory()
    llm = engine(demo, kv_cache_bytes=budget, max_num_batched_tokens=64, max_num_seqs=16)
    assert llm.runner.target.nbytes <= budget
    served = 0
    while served < num_requests:
        prompts = [rng.integers(0, 4096, rng.integers(1, 60)).tolist() for _ in range(20)]
        params = [
            SamplingParams(temperature=0, max_tokens=int(rng.integers(1, 12)), ignore_eos=True)
            for _ in prompts
        ]
        outputs = llm.generate(prompts, params)
        assert {output.finish_reason for output in outputs} == {"length"}
        served += len(prompts)
    assert mx.get_peak_memory() <= weights + budget + activations
    assert_idle(llm)


def test_model_is_a_name_a_folder_or_a_pair(demo):
    [expected] = engine(demo).generate(chat(QUESTIONS[1]), GREEDY)
    for model in ("demo", str(TARGET_PATH), TARGET_PATH, list(demo)):
        [output] = engine(model).generate(chat(QUESTIONS[1]), GREEDY)
        assert output.token_ids == expected.token_ids
    model, tokenizer = demo
    pairs = (1, 2), (model,), (model, None), (tokenizer, model), (*demo, {})
    for wrong in (None, 5, b"demo", model, *pairs):
        with pytest.raises(UserError, match=r"is not a model; pass a name, a folder, or the pair"):
            engine(wrong)


def test_draft_with_another_vocabulary_is_rejected(demo, monkeypatch):
    model, tokenizer = load("demo-draft")

    class OtherTokenizer:
        def get_vocab(self):
            return {"other": 0}

    monkeypatch.setattr(factory, "_load_model", lambda model, *_: (*model, None))
    with pytest.raises(UserError, match="draft and target must share one vocabulary"):
        LLM((model, tokenizer), draft_model=(model, OtherTokenizer()))
