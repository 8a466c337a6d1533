"""Finish reasons and limits: lengths, timeouts, full queues, NaN logits."""

import mlx.core as mx
import pytest

from tests.engine.support import chat, finish
from tiny_llm import LLM, SamplingParams, UserError
from tiny_llm.engine.execution.sampler import rows_with_nan
from tiny_llm.errors import QueueFullError

QUESTION = chat("What is 17 + 25?")


def generate_one(llm, **params):
    params = {"temperature": 0, "max_tokens": 40} | params
    [output] = llm.generate(QUESTION, SamplingParams(**params))
    assert output.error is None
    return output


def test_text_keeps_its_leading_space(llm):
    [output] = llm.generate("RoPE is", SamplingParams(temperature=0, max_tokens=4))
    assert output.text == llm.tokenizer.decode(output.token_ids)
    assert output.text.startswith(" ")


def test_no_end_token_before_min_tokens(llm):
    short = generate_one(llm)
    assert short.finish_reason == "stop"
    min_tokens = len(short.token_ids) + 3
    longer = generate_one(llm, min_tokens=min_tokens)
    assert longer.token_ids[: len(short.token_ids) - 1] == short.token_ids[:-1]
    assert not set(longer.token_ids[:min_tokens]) & llm.tokenizer.eos_token_ids
    assert len(longer.token_ids) >= min_tokens


def test_no_stop_token_or_string_before_min_tokens(llm):
    whole = generate_one(llm)
    first, second = whole.token_ids[:2]
    assert generate_one(llm, stop_token_ids=[second]).token_ids == [first, second]
    longer = generate_one(llm, stop_token_ids=[second], min_tokens=5)
    assert second not in longer.token_ids[:5]
    stop, start = llm.tokenizer.decode([second]), llm.tokenizer.decode([first, second])
    assert generate_one(llm, stop=stop).text == llm.tokenizer.decode([first])
    later = generate_one(llm, stop=stop, min_tokens=2)
    assert later.text.startswith(start)
    assert stop not in later.text[len(start) :]


@pytest.mark.slow
def test_clamp_max_tokens(llm):
    context = llm.scheduler.config.max_seq_len
    prompt = [17] * (context - 3)
    params = {"temperature": 0, "max_tokens": 32_000, "ignore_eos": True}
    [rejected] = llm.generate(prompt, SamplingParams(**params))
    assert "max_tokens must be at most 3 for this prompt" in rejected.error
    [clamped] = llm.generate(prompt, SamplingParams(**params, clamp_max_tokens=True))
    assert (len(clamped.token_ids), clamped.finish_reason) == (3, "length")
    [rejected] = llm.generate([17] * context, SamplingParams(**params, clamp_max_tokens=True))
    assert "the prompt has" in rejected.error
    for limit in ({"clamp_max_tokens": True}, {"max_tokens": None}):
        [rejected] = llm.generate(prompt, SamplingParams(**params | limit, min_tokens=4))
        assert rejected.error.startswith("min_tokens must be at most 3 for a prompt of ")
        assert rejected.error.endswith("tokens, got 4.")


def test_timeout(llm):
    without_timeout = llm.add_request(QUESTION, SamplingParams(temperature=0, max_tokens=40))
    with_timeout = llm.add_request(QUESTION, SamplingParams(max_tokens=40), timeout=1e-6)
    outputs = finish(llm)
    assert (outputs[with_timeout].finish_reason, outputs[with_timeout].token_ids) == ("timeout", [])
    assert outputs[without_timeout].token_ids == generate_one(llm).token_ids
    with pytest.raises(UserError, match="timeout must be a number of seconds > 0, got 0"):
        llm.add_request(QUESTION, timeout=0)


def test_timeout_keeps_partial_output(llm, monkeypatch):
    now = 0.0
    monkeypatch.setattr("tiny_llm.engine.core.time.perf_counter", lambda: now)
    llm.add_request(QUESTION, SamplingParams(temperature=0, max_tokens=40), timeout=5)
    while not (update := llm.step()):
        pass
    now = 5.0
    last = llm.step()[-1]
    assert last.finish_reason == "timeout"
    assert last.request_output.token_ids == list(update[0].token_ids)
    assert not llm.has_unfinished_requests


def test_full_queue_rejects():
    llm = LLM("demo", kv_cache_bytes=2**22, max_num_seqs=2, max_queue=1)
    params = SamplingParams(max_tokens=2)
    for _ in range(3):
        llm.add_request(QUESTION, params)
    with pytest.raises(QueueFullError, match="3 unfinished requests .* limit of 3 .* try again la"):
        llm.add_request(QUESTION, params)
    finish(llm)
    with pytest.raises(QueueFullError):  # all `n` completions are queued or none
        llm.add_request(QUESTION, SamplingParams(n=4))
    assert not llm.has_unfinished_requests
    llm.add_request(QUESTION, SamplingParams(n=3))


@pytest.mark.parametrize("draft", [None, "demo-draft"])
def test_nan_logits_fail_only_their_request(draft):
    llm = LLM("demo", kv_cache_bytes=2**23, draft_model=draft)
    params = SamplingParams(temperature=0, max_tokens=12)
    [expected] = llm.generate(QUESTION, params)
    model, num_valid_tokens = llm.runner.target.model, len(expected.token_ids) // 2
    compute = model.ragged_logits

    def with_nan(ids, batch, rows, storage):
        logits = compute(ids, batch, rows, storage)
        for row, token in enumerate(rows):
            starts = batch.attention_metadata.cu_seqlens_q[:-1]
            owner = max(i for i, start in enumerate(starts) if start <= token)
            position = batch.positions[token]
            if owner == 0 and position >= len(expected.prompt_token_ids) - 1 + num_valid_tokens:
                logits[row] = mx.nan
        return logits

    llm.add_request(QUESTION, params, request_id="nan")
    llm.add_request(QUESTION, params, request_id="healthy")
    model.ragged_logits = with_nan
    outputs = {}
    while llm.has_unfinished_requests:
        outputs |= {update.request_id: update.request_output for update in llm.step()}
        llm.scheduler.check_integrity()
        if "nan" in outputs and outputs["nan"].finished:
            model.ragged_logits = compute
    assert outputs["nan"].finish_reason == "error"
    assert "NaN logits" in outputs["nan"].error
    assert outputs["nan"].token_ids == expected.token_ids[:num_valid_tokens]
    assert outputs["healthy"].token_ids == expected.token_ids


def test_rows_with_nan():
    logits = mx.random.normal((6, 300)).astype(mx.bfloat16)
    logits[1] = logits[3, 17] = logits[4, 8] = mx.nan
    logits[5, 0] = mx.inf
    chosen = [5, 0, 0, 17, 0, 0]
    chosen_is_nan = mx.isnan(logits[mx.arange(6), mx.array(chosen)])
    assert rows_with_nan(logits, chosen, chosen_is_nan) == [1, 3, 4]
