"""Decoding speed with and without n-gram draft tokens, on edits from commits.

    python -m benchmark.ngram_drafts --model FOLDER [--batch-size N] [--repository FOLDER]

A prompt has a file before a commit, and the commit's message; the expected answer is a window of
the file after the commit, around the first change. Two other kinds of answers bound the speedup:
quotes of the prompt's file, and new files, which the prompt does not contain. Weights may be
random, so expected tokens replace each step's samples. Text is split as by GPT-style tokenizers,
one id per word.

The same requests run on one engine, alternately with and without draft tokens, after a warm-up.
Prompts are in the prefix cache, and timing starts once all requests have their first token.
"""

import argparse
import re
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import mlx.core as mx
from rich.console import Console

from benchmark.command import benchmark_parser, print_json, run_command
from benchmark.model_costs import ModelCosts
from tiny_llm import LLM, SamplingParams, UserError, load_weights
from tiny_llm.cli.open_loop import TimestampTokenizer
from tiny_llm.engine import model_runner
from tiny_llm.engine.execution.sampler import SamplerOutput, SamplingRow
from tiny_llm.engine.scheduling.request import Logprobs
from tiny_llm.engine.spec_decode.draft_tokens import MAX_NGRAM_DRAFT_TOKENS, NgramProposer
from tiny_llm.models import find_model

TARGETS = {"quote": 1.8, "edit": None, "new file": 0.97}  # target speedup by kind of answer
LABELS = ("kind", "cases")  # keys of a result row with non-numeric values
SUFFIXES = (".py", ".md", ".cpp", ".h")
COMMITS = 1000  # number of commits searched for edits
MAX_MESSAGE_TOKENS = 200
WORDS = re.compile(r" ?[^\W\d_]+| ?\d| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


@dataclass(frozen=True)
class Case:
    """A prompt and its forced answer, as token ids."""

    kind: str  # a key of `TARGETS`
    name: str  # commit and path
    prompt: list[int]
    answer: list[int]


def encode(text: str, vocab_size: int) -> list[int]:
    """Token ids of a text, one per word; equal words have equal ids."""
    return [zlib.crc32(word.encode()) % vocab_size for word in WORDS.findall(text)]


def git(repository: Path, *arguments: str) -> str:
    """Output of `git -C repository arguments…`.

    Raises:
        UserError: the command failed.
    """
    command = ["git", "-C", str(repository), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", b"") or str(error).encode()).decode().strip()
        raise UserError(
            f"cannot read the git history of {repository}: {reason.splitlines()[0].rstrip('.')}."
        ) from error


def changed_files(repository: Path, revision: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields (commit, message, status, path) of modified and added text files, newest first.

    Each path and each commit occurs at most once per status.
    """
    log = git(
        repository,
        *(
            "log",
            revision,
            f"--max-count={COMMITS}",
            "--no-merges",
            "--diff-filter=AM",
            "--name-status",
        ),
        *("--no-renames", "--format=%x01%H%x02%B%x02", "--"),
    )
    seen: set[tuple[str, str]] = set()
    for entry in log.split("\x01")[1:]:
        commit, message, files = entry.split("\x02")
        for line in files.split("\n"):
            status, _, path = line.partition("\t")
            keys = {(status, commit), (status, path)}
            if path.endswith(SUFFIXES) and not keys & seen:
                seen |= keys
                yield commit, message.strip(), status, path


def edit_cases(
    repository: Path,
    revision: str,
    count: int,
    max_prompt: int,
    max_tokens: int,
    vocab_size: int,
) -> list[Case]:
    """Builds `count` cases of each kind from a repository's history.

    Args:
        revision: newest commit to use.
        max_prompt: maximum length of the file in a prompt, in tokens.
        max_tokens: length of the answers, in tokens.

    Raises:
        UserError: the history is unreadable or has too few edits of this size.
    """
    cases: dict[str, list[Case]] = {kind: [] for kind in TARGETS}
    for commit, message, status, path in changed_files(repository, revision):
        if min(map(len, cases.values())) >= count:
            break
        if len(cases["edit" if status == "M" else "new file"]) >= count:
            continue
        name = f"{commit[:8]} {path}"
        change = encode(message, vocab_size)[:MAX_MESSAGE_TOKENS]
        after = encode(git(repository, "show", f"{commit}:{path}"), vocab_size)
        if status == "A":
            if len(after) >= max_tokens:
                task = encode(f"Write the file {path}:\n", vocab_size)
                cases["new file"].append(Case("new file", name, task + change, after[:max_tokens]))
            continue
        before = encode(git(repository, "show", f"{commit}^:{path}"), vocab_size)
        if not max_tokens <= len(before) <= max_prompt or len(after) < max_tokens:
            continue
        change_at = first_difference(before, after)
        file = encode(f"Here is the file {path}:\n", vocab_size) + before
        prompt = file + encode("\nApply this change:\n", vocab_size) + change
        cases["edit"].append(Case("edit", name, prompt, window(after, change_at, max_tokens)))
        prompt = file + encode("\nRepeat these lines:\n", vocab_size)
        cases["quote"].append(Case("quote", name, prompt, window(before, change_at, max_tokens)))
    for kind, found in cases.items():
        if len(found) < count:
            raise UserError(
                f"the history of {repository} has {len(found)} cases of kind '{kind}', expected "
                f"{count}; reduce --prompts or --max-tokens, or set --repository."
            )
    return [case for found in cases.values() for case in found[:count]]


def window(tokens: list[int], center: int, size: int) -> list[int]:
    """Slice of `size` tokens around `center`, shifted to lie within the list."""
    start = min(max(0, center - size // 2), len(tokens) - size)
    return tokens[start : start + size]


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Index of the first difference; min(len(a), len(b)) if one is a prefix of the other."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


class ForcedOutput(SamplerOutput):
    """Sampler output that returns the tokens of the expected answers."""

    answers: dict[str, list[int]]  # expected tokens by request id

    def __init__(self, logits: mx.array, rows: Sequence[SamplingRow]):
        super().__init__(logits, rows)
        self._rows = rows

    def read(self) -> tuple[list[int], list[int], dict[int, Logprobs]]:
        """Returns the answers' tokens instead of the samples."""
        sampled, nan_rows, logprobs = super().read()
        answers = [self.answers[row.request.request_id] for row in self._rows]
        tokens = [
            answer[row.position] if row.position < len(answer) else token
            for row, answer, token in zip(self._rows, answers, sampled, strict=True)
        ]
        return tokens, nan_rows, logprobs


@dataclass(frozen=True)
class Run:
    """Measurement of concurrent requests, once each has its first token."""

    seconds: float
    tokens: int
    steps: int  # decoding steps, summed over the requests
    drafted: int
    accepted: int


def run_cases(llm: LLM, cases: Sequence[Case], speculative: str | None) -> Run:
    """Runs cases concurrently, with or without n-gram draft tokens.

    Raises:
        UserError: a request failed.
    """
    llm._proposer = NgramProposer(MAX_NGRAM_DRAFT_TOKENS) if speculative else None
    ForcedOutput.answers = {case.name: case.answer for case in cases}
    for case in cases:
        params = SamplingParams(temperature=0, max_tokens=len(case.answer), ignore_eos=True)
        llm.add_request(case.prompt, params, request_id=case.name)
    counts: dict[str, int] = {}
    outputs: dict[str, Any] = {}
    before: tuple[int, ...] = ()
    started = 0.0
    while llm.has_unfinished_requests:
        for output in llm.step():
            outputs[output.request_id] = output.request_output
        if not before and len(outputs) == len(cases):
            counts = {name: len(output.token_ids) for name, output in outputs.items()}
            before = _statistics(llm)
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    for case in cases:
        if outputs[case.name].token_ids != case.answer:
            raise UserError(f"the request {case.name} failed: {outputs[case.name].error}")
    tokens = sum(len(case.answer) for case in cases) - sum(counts.values())
    steps = [after - earlier for after, earlier in zip(_statistics(llm), before, strict=True)]
    return Run(seconds, tokens, *steps)


def _statistics(llm: LLM) -> tuple[int, int, int]:
    found = llm.runner.statistics
    return llm.runner.num_decodes, found.num_draft_tokens, found.num_accepted_tokens


def compare(llm: LLM, cases: Sequence[Case], rounds: int) -> dict[str, Any]:
    """Runs cases alternately without and with draft tokens, after a warm-up."""
    runs: dict[str | None, list[Run]] = {None: [], "ngram": []}
    for number in range(rounds + 1):
        for speculative in list(runs)[:: 1 if number % 2 else -1]:
            run = run_cases(llm, cases, speculative)
            if number:
                runs[speculative].append(run)
    plain, ngram = runs[None], runs["ngram"]
    speeds = [[run.tokens / run.seconds for run in side] for side in (plain, ngram)]
    return {
        "kind": cases[0].kind,
        "cases": [case.name for case in cases],
        "tokens_per_step": ngram[0].tokens / ngram[0].steps,
        "drafts_per_token": ngram[0].drafted / ngram[0].tokens,
        "acceptance_rate": ngram[0].accepted / max(1, ngram[0].drafted),
        "tokens_per_s": median(speeds[0]),
        "tokens_per_s_with_drafts": median(speeds[1]),
        "best_tokens_per_s": max(speeds[0]),
        "best_tokens_per_s_with_drafts": max(speeds[1]),
        "ratio": median(b / a for a, b in zip(*speeds, strict=True)),
        "ratio_of_best": max(speeds[1]) / max(speeds[0]),
    }


def report(kind: str, rows: Sequence[dict[str, Any]]) -> None:
    """Prints the table row of a kind: medians of its cases, and the lowest speedup."""
    middle = {key: median(row[key] for row in rows) for key in rows[0] if key not in LABELS}
    target = TARGETS[kind]
    cells = [
        kind,
        f"{middle['tokens_per_step']:.2f}",
        f"{middle['drafts_per_token']:.2f}",
        f"{middle['acceptance_rate']:.0%}",
        f"{middle['tokens_per_s']:.1f}",
        f"{middle['tokens_per_s_with_drafts']:.1f}",
        f"{middle['ratio']:.2f}",
        f"{min(row['ratio'] for row in rows):.2f}",
        f"{middle['ratio_of_best']:.2f}",
        "" if target is None else f"{target:.2f}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def run(args: argparse.Namespace) -> int:
    """Measures all cases, alternating between the kinds, and prints the table."""
    mx.set_default_device(mx.cpu)
    costs = ModelCosts.from_folder(find_model(args.model, Console(stderr=True)))
    mlx_model, _ = load_weights(args.model)
    count = args.prompts * args.batch_size
    sizes = count, args.max_prompt, args.max_tokens, costs.args.vocab_size
    cases = edit_cases(args.repository, args.revision, *sizes)
    longest = max(len(case.prompt) + len(case.answer) for case in cases)
    llm = LLM(
        (mlx_model, TimestampTokenizer()),
        kv_cache_bytes=(args.batch_size + 1) * (longest + 64) * costs.kv_bytes_per_token,
        max_num_seqs=args.batch_size,
    )
    llm.reserve()
    by_kind = {kind: [case for case in cases if case.kind == kind] for kind in TARGETS}
    rows: list[dict[str, Any]] = []
    with patch.object(model_runner, "SamplerOutput", ForcedOutput):
        for first in range(0, count, args.batch_size):
            for of_kind in by_kind.values():
                batch = of_kind[first : first + args.batch_size]
                rows.append(compare(llm, batch, args.rounds))
                print(f"{rows[-1]['ratio']:.2f}  {batch[0].kind}  {batch[0].name}", file=sys.stderr)
    print(
        "| answer | tokens/step | drafts/token | accepted | tokens/s without | with | "
        "ratio, median | lowest | ratio of best | target |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for kind in TARGETS:
        report(kind, [row for row in rows if row["kind"] == kind])
    return print_json({"model": args.model, "batch_size": args.batch_size, "rows": rows})


def main() -> int:
    """Runs the command; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--model", default="demo", help="model name or folder (default: demo)")
    add(
        "--repository",
        type=Path,
        default=Path(__file__).parent.parent,
        help="git checkout whose history has the edits (default: tiny-llm's)",
    )
    add("--revision", default="HEAD", help="newest commit to use (default: HEAD)")
    add("--prompts", type=int, default=6, help="number of measurements per kind of answer")
    add("--batch-size", type=int, default=1, help="number of concurrent requests")
    add("--max-prompt", type=int, default=2048, help="longest file in a prompt, in tokens")
    add("--max-tokens", type=int, default=256, help="length of the answers, in tokens")
    add("--rounds", type=int, default=3)
    return run_command("ngram_drafts", parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
