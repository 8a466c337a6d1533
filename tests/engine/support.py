"""Shared by the engine's tests: prompts, a logits recorder, a chi-square test."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.support import as_numpy
from tiny_llm import LLM, SamplingParams, StructuredOutputs

Logits = dict[tuple[int, int], np.ndarray]  # by case and output position

PARAGRAPH = (
    "Lenmora lies on the river Tavel. The mayor of Lenmora is Mira Holton. The trams of "
    "Lenmora are yellow. A festival takes place in September, when the apples are ripe. "
)


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def assert_distributed_as(answers: Iterable[Hashable], expected: Mapping[Any, float]) -> None:
    """Chi-square test of a discrete distribution; false positive rate 1e-4.

    Args:
        answers: samples.
        expected: probability of each possible sample. Cells with an expected count below five are
            merged.
    """
    from scipy.stats import chi2  # its import takes a second

    counts = Counter(answers)
    assert counts.keys() <= expected.keys()
    number = counts.total()
    common = {output: p for output, p in expected.items() if p * number >= 5}
    cells = [(counts[output], number * p) for output, p in common.items()]
    seen = sum(observed for observed, _ in cells)
    cells.append((number - seen, number * (1 - sum(common.values()))))
    statistic = sum((o - e) ** 2 / e for o, e in cells if e > 0)
    assert statistic < chi2.ppf(1 - 1e-4, len(cells) - 1)


# Common prefixes, a prompt of one token, all sampling parameters.
CASES: list[tuple[Any, SamplingParams]] = [
    (chat(PARAGRAPH + "Who is the mayor?"), SamplingParams(temperature=0, max_tokens=12)),
    (
        chat(PARAGRAPH + "Which colour have the trams?"),
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

MAYOR = {
    "type": "object",
    "properties": {"mayor": {"type": "string"}, "of": {"enum": ["Lenmora", "Tavel"]}},
    "required": ["mayor", "of"],
    "additionalProperties": False,
}

# Larger cases.
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
            structured_outputs=StructuredOutputs(json=MAYOR),
        ),
    ),
]


def record_logits(llm: LLM) -> dict[tuple[str, int], np.ndarray]:
    """Records the logits of every output token, by request id and output position."""
    seen: dict[tuple[str, int], np.ndarray] = {}
    sample = llm.runner._sample

    def watch(chunks, draft_tokens, logits):
        outputs = sample(chunks, draft_tokens, logits)
        rows, first = as_numpy(logits), 0
        for chunk, drafts in zip(chunks, draft_tokens, strict=True):
            if chunk.samples:
                name = chunk.request.request_id
                for place in range(len(outputs[name].token_ids)):
                    key = name, chunk.request.num_output_tokens + place
                    assert key not in seen, "a token was sampled twice"
                    seen[key] = rows[first + place]
                first += len(drafts) + 1
        return outputs

    llm.runner._sample = watch
    return seen


def run_cases(
    llm: LLM,
    order: Sequence[int],
    steps_between: int = 0,
    cases=CASES,
    loras: Mapping[int, str | None] | None = None,
) -> tuple[dict[int, Any], Logits]:
    """Serves `cases` in the given order, with their adapters, `steps_between` steps apart.

    Returns:
        (outputs by case, logits by case and output position).
    """
    seen = record_logits(llm)
    outputs = {}

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
    return outputs, {(int(name), place): row for (name, place), row in seen.items()}
