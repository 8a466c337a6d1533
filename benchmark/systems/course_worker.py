"""Worker for the model of a course week, the learner's or the solution's.

    python -m benchmark.systems.course_worker FOLDER --week 2 --solution mine

A learner's kernels may be plain loops, a hundred times slower than the solution's, so every
measurement stops after a few seconds; the time of a longer prompt is extrapolated from a short one,
with a note in the reply.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from benchmark.model_costs import ModelCosts
from benchmark.model_driver import CachedModel
from tiny_llm.cli.backends.local import Checkpoint, build_model, load_for_solution
from tiny_llm.cli.main import make_parser
from tiny_llm.errors import TaskNotImplemented
from tiny_llm.generate import decode_by_recomputing
from tiny_llm.sampler import make_sampler

from .worker import DECODE_STEPS, UnsupportedError, serve, token_ids

LIMIT_SECONDS = 2.0  # no further repetition starts after this time
PROMPT_SECONDS = 15.0  # prompts that would take longer are extrapolated
SHORT_PROMPT = 4  # tokens of the short prompt that is extrapolated


def best_seconds(run: Callable[[], object], max_runs: int) -> float:
    """Minimum of at most `max_runs` runs; none starts after `LIMIT_SECONDS`."""
    seconds: list[float] = []
    while len(seconds) < max_runs and sum(seconds) < LIMIT_SECONDS:
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


class UncachedModel:
    """Week 1's model, which has no cache, so each step recomputes the entire sequence."""

    def __init__(self, model: Any, args: Any):
        self._model = model
        self._vocab_size = args.vocab_size

    def prefill(self, tokens: int) -> None:
        """Runs a prompt up to the selection of its first new token."""
        ids = token_ids(tokens, self._vocab_size)
        next(decode_by_recomputing(self._model, ids, make_sampler(0)))

    def decoding_step(self, batch: int, context: int) -> Callable[[], object]:
        """Creates a decoding step.

        Raises:
            UnsupportedError: `batch` is more than one.
        """
        if batch > 1:
            raise UnsupportedError("Week 1 supports one sequence")
        return lambda: self.prefill(context + 1)


class CourseCachedModel(CachedModel):
    """Week 2's or Week 3's model."""

    def decoding_step(self, batch: int, context: int) -> Callable[[], object]:
        """Creates a decoding step for sequences with a context."""
        sequences = self.sequences(batch, context, max_new_tokens=DECODE_STEPS + 2)
        return lambda: self.step(sequences)


class CourseEngine:
    """The learner's ("mine") or solution's ("ref") model of week 1, 2 or 3."""

    def __init__(self, folder: Path, week: int, solution: str):
        self.weight_bits = ModelCosts.from_folder(folder).weight_bits
        self.about = f"week {week}"
        flags = ["--model", str(folder), "--solution", solution, "--loader", f"week{week}"]
        # Falls back to plain attention if the learner has not implemented flash attention.
        attempts = [["--enable-flash-attn"], ["--no-enable-flash-attn"]] if week == 2 else [[]]
        for attention in attempts:
            args = make_parser("main").parse_args([*flags, *attention])
            checkpoint = Checkpoint(str(folder), *load_for_solution(args, str(folder)))
            model, config = build_model(args, checkpoint), checkpoint.mlx_model.args
            self._model = (
                UncachedModel(model, config) if week == 1 else CourseCachedModel(model, config)
            )
            try:
                self._model.prefill(1)
                return
            except TaskNotImplemented:
                if attention == attempts[-1]:
                    raise
                self.about = f"week {week}, without flash attention"

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        short = best_seconds(lambda: self._model.prefill(SHORT_PROMPT), 2)
        scaled = short * tokens / SHORT_PROMPT
        if scaled > PROMPT_SECONDS:
            return {"seconds": scaled, "note": f"{SHORT_PROMPT} tokens measured and scaled"}
        return {"seconds": best_seconds(lambda: self._model.prefill(tokens), 3)}

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`. Excludes the first step, unless it alone exceeds `LIMIT_SECONDS`."""
        step = self._model.decoding_step(batch, context)
        try:
            start = time.perf_counter()
            step()
            first = time.perf_counter() - start
        except TaskNotImplemented as error:
            raise UnsupportedError(str(error)) from None
        if first > LIMIT_SECONDS:
            return {"seconds": first}
        start, count = time.perf_counter(), 0
        while count < DECODE_STEPS and time.perf_counter() - start < LIMIT_SECONDS:
            step()
            count += 1
        return {"seconds": (time.perf_counter() - start) / count}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--week", type=int, required=True)
    parser.add_argument("--solution", default="ref")
    arguments = parser.parse_args()
    mx.random.seed(0)
    serve(lambda: CourseEngine(arguments.folder, arguments.week, arguments.solution))
