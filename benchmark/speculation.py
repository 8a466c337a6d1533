"""Guesses from the text itself, with and without: answers that quote the prompt, or do not.

    python -m benchmark.speculation --model FOLDER [--rounds N]

Weights may be random, so no model is asked to quote. The answer of the first two cases is the only
one that a grammar allows, a piece of code that stands in the prompt, whole or with every tenth word
changed; the tokens that the grammar forces are not used as guesses, on either side. The third case
is drawn at random, and repeats nothing. Both sides have the same tokens, which is checked. They run
in turns, and the ratios are those of neighbouring runs.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tiny_llm import LLM, SamplingParams, StructuredOutputs, UserError, load_weights
from tiny_llm.engine import stop_checker
from tiny_llm.engine.spec_decode.ngram_proposer import NgramProposer

TOKENS = 160
BATCH_SIZES = (1, 4, 16)


@dataclass(frozen=True)
class Case:
    """Requests of one kind.

    Attributes:
        name: in words.
        request: the prompt and the parameters of request number n.
    """

    name: str
    request: Callable[[int], tuple[str, SamplingParams]]


def cases(tokenizer: Any) -> list[Case]:
    """Those of the module's docstring."""
    source = Path(stop_checker.__file__).read_text(encoding="utf-8")[:2500]
    words = source.split(" ")

    def quoting(change_every: int) -> Callable[[int], tuple[str, SamplingParams]]:
        def request(n: int) -> tuple[str, SamplingParams]:
            own = words[5 * n :]
            if change_every:
                own = [f"x{i}" if i % change_every == 5 else word for i, word in enumerate(own)]
            answer = tokenizer.decode(tokenizer.encode(" ".join(own))[: TOKENS - 1])
            form = StructuredOutputs(choice=[answer])
            return f"{n}. Write this again.\n{source}\n", SamplingParams(
                max_tokens=TOKENS, temperature=0, structured_outputs=form
            )

        return request

    def drawn(n: int) -> tuple[str, SamplingParams]:
        params = SamplingParams(max_tokens=TOKENS, temperature=1, seed=n, ignore_eos=True)
        return f"{n}. Say something new.\n{source}\n", params

    return [
        Case("quotes the prompt", quoting(0)),
        Case("quotes it, every tenth word changed", quoting(10)),
        Case("repeats nothing", drawn),
    ]


def run(llm: LLM, case: Case, batch_size: int) -> tuple[float, list[list[int]]]:
    """Seconds from the step on in which the last request got its first token, and all tokens."""
    requests = [case.request(n) for n in range(batch_size)]
    for number, (prompt, params) in enumerate(requests):
        llm.add_request(prompt, params, request_id=str(number))
    outputs: dict[str, Any] = {}
    started = 0.0
    while llm.has_unfinished_requests:
        for news in llm.step():
            outputs[news.request_id] = news.request_output
        if not started and len(outputs) == batch_size:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    return seconds, [outputs[str(n)].outputs[0].token_ids for n in range(batch_size)]


def compare(engines: dict[str, LLM], case: Case, batch_size: int, rounds: int) -> dict[str, Any]:
    """Both sides in turns; a round that does not count comes first.

    Raises:
        SystemExit: the tokens differ.
    """
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    before = engines["ngram"].runner.statistics
    num_draft_tokens, accepted = before.num_draft_tokens, before.num_accepted_tokens
    for number in range(rounds + 1):
        tokens = {}
        for name in list(engines)[:: 1 if number % 2 else -1]:
            taken, tokens[name] = run(engines[name], case, batch_size)
            if number:
                seconds[name].append(taken)
        if tokens["plain"] != tokens["ngram"]:
            raise SystemExit(f"{case.name}: other tokens with guesses than without")
    now = engines["ngram"].runner.statistics
    ratios = [a / b for a, b in zip(seconds["plain"], seconds["ngram"], strict=True)]
    generated = sum(map(len, tokens["plain"]))
    return {
        "case": case.name,
        "batch": batch_size,
        "tokens_per_s": {name: generated / median(own) for name, own in seconds.items()},
        "ratio": median(ratios),
        "ratio_of_minima": min(seconds["plain"]) / min(seconds["ngram"]),
        "guesses_per_token": (now.num_draft_tokens - num_draft_tokens) / generated / (rounds + 1),
        "right": (now.num_accepted_tokens - accepted)
        / max(1, now.num_draft_tokens - num_draft_tokens),
    }


def main() -> int:
    """Prints a table, and a line of JSON; the exit status is 2 for a user's mistake."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a folder or a name")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    try:
        weights = load_weights(args.model)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    engines = {"plain": LLM(weights), "ngram": LLM(weights, speculative="ngram")}
    engines["plain"].core._proposers = []
    engines["ngram"].core._proposers = [NgramProposer()]
    print("| answer | batch | tokens/s without | with | ratio | guesses a token | right |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    results = []
    for case in cases(weights[1]):
        for batch_size in BATCH_SIZES:
            found = compare(engines, case, batch_size, args.rounds)
            results.append(found)
            speeds = found["tokens_per_s"]
            print(
                f"| {case.name} | {batch_size} | {speeds['plain']:.1f} | {speeds['ngram']:.1f} "
                f"| {found['ratio']:.2f} | {found['guesses_per_token']:.2f} "
                f"| {found['right']:.0%} |",
                flush=True,
            )
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
