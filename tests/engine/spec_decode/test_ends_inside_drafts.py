"""Requests of hybrid models that end inside accepted draft tokens."""

import random

import pytest

from tests.engine.hybrid import build, write_hybrid
from tiny_llm import SamplingParams

# Repetitive, so that n-grams are found.
PROMPTS = [[5, 6, 7, 8] * 4, [9, 10, 11] * 5, [5, 6, 7, 8] * 4 + [12, 13]]
LENGTH = 40


def drain(llm, aborts):
    """Steps until all requests have ended; `aborts` maps ids to output lengths."""
    lengths, largest_step = dict.fromkeys(aborts, 0), 0
    outputs = {}
    while llm.has_unfinished_requests:
        for output in llm.step():
            name = output.request_id
            outputs[name] = output.request_output
            largest_step = max(largest_step, len(output.token_ids))
            lengths[name] = lengths.get(name, 0) + len(output.token_ids)
            if output.finish_reason is None and lengths[name] >= aborts.get(name, LENGTH + 1):
                llm.abort(name)
        llm.scheduler.check_integrity()
    return outputs, largest_step


@pytest.fixture(params=["draft model", "ngram", "mtp"])
def llm(request, tmp_path):
    folder = str(write_hybrid(tmp_path / "model", mtp=True))
    options = {
        "draft model": {"draft_model": folder, "num_drafts": 3},
        "ngram": {"speculative": "ngram"},
        "mtp": {"speculative": "mtp", "num_drafts": 3},
    }[request.param]
    return build(folder, block_size=4, slots=40, **options)


def test_ends_inside_accepted_drafts(llm):
    rng = random.Random(1)
    # A bias toward few tokens makes random models repeat them, so that drafts are accepted.
    bias = dict.fromkeys((5, 6, 7), 40.0)
    free = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True, logit_bias=bias)
    answers = [output.token_ids for output in llm.generate(PROMPTS, free)]
    largest_step = 0
    for _ in range(12):
        expected, aborts = {}, {}
        for _ in range(4):
            index, end = rng.randrange(len(PROMPTS)), rng.randint(1, LENGTH)
            ids = answers[index]
            kind = rng.choice(("eos", "stop", "length", "abort"))
            options = {"max_tokens": LENGTH, "temperature": 0, "logit_bias": bias}
            if kind == "length":
                options["max_tokens"] = end
            elif kind == "eos":
                end = ids.index(ids[end - 1]) + 1
                options |= {"stop_token_ids": [ids[end - 1]]}
            elif kind == "stop":
                text = llm.tokenizer.decode(ids[end - 1 :][:1])
                end = next(n for n in range(1, LENGTH + 1) if text in llm.tokenizer.decode(ids[:n]))
                options |= {"stop": text}
            params = SamplingParams(ignore_eos=True, **options)
            name = llm.add_request(PROMPTS[index], params)
            expected[name] = (kind, ids[:end])
            if kind == "abort":
                aborts[name] = end
        outputs, size = drain(llm, aborts)
        largest_step = max(largest_step, size)
        for name, (kind, ids) in expected.items():
            actual = outputs[name].token_ids
            assert outputs[name].error is None
            assert actual[: len(ids)] == ids, kind
            assert len(actual) == len(ids) or kind == "abort"
        assert llm.scheduler.pages.states.counts().used == 0
    assert largest_step > 1, "no draft token was accepted"
