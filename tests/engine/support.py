"""Helpers for engine tests: prompts, recorded outputs, a chi-square test."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.support import as_numpy, assert_distributed, object_schema
from tiny_llm import LLM, SamplingParams, StructuredOutputs

Logits = dict[tuple[int, int], np.ndarray]  # keyed by case and output position

PARAGRAPH = (
    "Lenmora lies on the river Tavel. The mayor of Lenmora is Mira Holton. The trams of "
    "Lenmora are yellow. A festival takes place in September, when the apples are ripe. "
)


def accepts(matcher: Any, tokenizer: Any, text: str) -> bool:
    """Whether a grammar's matcher accepts the whole text as a complete output."""
    tokens = tokenizer.encode(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


def finish(llm: LLM) -> dict[str, Any]:
    """Runs all requests to their end; returns their outputs by id."""
    outputs = {}
    while llm.has_unfinished_requests:
        outputs |= {update.request_id: update.request_output for update in llm.step()}
        llm.scheduler.check_integrity()
    return outputs


def assert_idle(llm: LLM) -> None:
    """Asserts that no request is unfinished and only the cache holds pages."""
    llm.scheduler.check_integrity()
    assert not llm.has_unfinished_requests
    assert not llm._processors
    assert not llm._processors_by_request
    pages = llm.scheduler.pages
    assert pages.allocator.num_used == pages.cache.num_pages
    assert pages.states is None or pages.states.counts().used == 0


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def assert_distributed_as(samples: Iterable[Hashable], expected: Mapping[Any, float]) -> None:
    """Chi-square test of samples against a discrete distribution; see `assert_distributed`."""
    counts = Counter(samples)
    assert counts.keys() <= expected.keys()
    probabilities = np.array([*expected.values()])
    assert_distributed(np.array([counts[outcome] for outcome in expected]), probabilities)


# Requests with common prefixes, a one-token prompt and all sampling parameters.
CASES: list[tuple[Any, SamplingParams]] = [
    (chat(PARAGRAPH + "Who is the mayor?"), SamplingParams(temperature=0, max_tokens=12)),
    (
        chat(PARAGRAPH + "What color are the trams?"),
        SamplingParams(temperature=1.5, seed=5, max_tokens=12, logprobs=3),
    ),
    ([17], SamplingParams(temperature=1, seed=6, max_tokens=24, top_p=0.9, ignore_eos=True)),
    (
        chat("What is 17 + 25?"),
        SamplingParams(
            temperature=0,
            max_tokens=24,
            repetition_penalty=1.3,
            presence_penalty=0.5,
            frequency_penalty=0.7,
            ignore_eos=True,
        ),
    ),
    (
        chat(PARAGRAPH + "Who is the mayor?"),
        SamplingParams(
            temperature=2,
            seed=7,
            max_tokens=20,
            top_k=40,
            min_p=0.01,
            frequency_penalty=0.4,
            logit_bias={300: 6, 301: -100},
            ignore_eos=True,
        ),
    ),
]

# Adapter of each of `MORE_CASES`, or None. Of the cases with a common prefix, some have the same
# adapter and others have different ones.
LORAS = {0: None, 1: "a", 2: "b", 3: "b", 4: "a", 5: "wide", 6: None}

MAYOR_SCHEMA = object_schema(mayor={"type": "string"}, of={"enum": ["Lenmora", "Tavel"]})
MAYOR_SCHEMA["additionalProperties"] = False

# CASES, a case with min_tokens and a stop token, and a case with a JSON schema.
MORE_CASES = [
    *CASES,
    (
        PARAGRAPH + "Who is the mayor?",
        SamplingParams(seed=8, max_tokens=20, min_tokens=15, stop_token_ids=[13]),
    ),
    (
        chat(PARAGRAPH + "Who is the mayor?"),
        SamplingParams(
            seed=9,
            max_tokens=30,
            logprobs=1,
            repetition_penalty=1.2,
            structured_outputs=StructuredOutputs(json=MAYOR_SCHEMA),
        ),
    ),
]


def record_logits(llm: LLM) -> dict[tuple[str, int], np.ndarray]:
    """Records the logits of every output token by request id and output position."""
    recorded: dict[tuple[str, int], np.ndarray] = {}
    sample = llm.runner._sample

    def record(chunks, draft_tokens, logits):
        outputs = sample(chunks, draft_tokens, logits)
        rows, first = as_numpy(logits), 0
        for chunk, drafts in zip(chunks, draft_tokens, strict=True):
            if chunk.samples:
                request_id = chunk.request.request_id
                for position in range(len(outputs[request_id].token_ids)):
                    key = request_id, chunk.request.num_output_tokens + position
                    assert key not in recorded, "a token was sampled twice"
                    recorded[key] = rows[first + position]
                first += len(drafts) + 1
        return outputs

    llm.runner._sample = record
    return recorded


def run_cases(
    llm: LLM,
    order: Sequence[int],
    steps_between: int = 0,
    cases=CASES,
    loras: Mapping[int, str | None] | None = None,
) -> tuple[dict[int, Any], Logits]:
    """Serves `cases` in the given order, `steps_between` engine steps apart.

    `loras` maps cases to adapter names. Returns (outputs by case, logits by case and output
    position).
    """
    sample, recorded, outputs = llm.runner._sample, record_logits(llm), {}

    def step() -> None:
        for update in llm.step():
            outputs[int(update.request_id)] = update.request_output
        llm.scheduler.check_integrity()

    for case in order:
        prompt, params = cases[case]
        llm.add_request(prompt, params, request_id=str(case), lora=(loras or {}).get(case))
        for _ in range(steps_between):
            step()
    while llm.has_unfinished_requests:
        step()
    llm.runner._sample = sample
    return outputs, {
        (int(request_id), position): row for (request_id, position), row in recorded.items()
    }


def run_alone(
    make_llm: Callable[[int], LLM], cases=CASES, loras: Mapping[int, str | None] | None = None
) -> tuple[dict[int, Any], Logits]:
    """Reference outputs and logits: each case alone on `make_llm(case)`."""
    outputs, logits = {}, {}
    for case in range(len(cases)):
        own_outputs, own_logits = run_cases(make_llm(case), [case], cases=cases, loras=loras)
        outputs |= own_outputs
        logits |= own_logits
    return outputs, logits


def assert_same_outputs(
    actual: Mapping[int, Any],
    actual_logits: Logits,
    reference: tuple[Mapping[int, Any], Logits],
    context: str = "",
) -> None:
    """Asserts bitwise equal results of `run_cases` and `run_alone`."""
    outputs, logits = reference
    for case, expected in outputs.items():
        assert actual[case].error is None, f"request {case}: {actual[case].error} {context}"
        for field in ("token_ids", "text", "logprobs", "finish_reason"):
            wanted, got = getattr(expected, field), getattr(actual[case], field)
            assert got == wanted, f"request {case}: expected {field} {wanted}, got {got}, {context}"
    for key, row in logits.items():
        np.testing.assert_array_equal(actual_logits[key], row, err_msg=f"{key} {context}")
