"""Helpers for tests of engines with a prefix cache on disk."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.engine.support import PARAGRAPH
from tiny_llm import LLM, SamplingParams

PROMPT = PARAGRAPH * 4 + "Who is the mayor of Lenmora?"
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)


def open_llm(directory: Path, model: Any = "demo", build: Callable[..., LLM] = LLM, **options: Any):
    """Builds an engine that prefers reading pages from disk to recomputing them."""
    with mock.patch("tiny_llm.engine.factory._page_seconds", return_value=float("inf")):
        return build(model, prefix_cache_dir=directory, **options)


@contextmanager
def engine(directory: Path, model: Any = "demo", **options: Any) -> Iterator[LLM]:
    """Opens an engine and closes it on exit, which flushes its pages to disk."""
    llm = open_llm(directory, model, **options)
    try:
        yield llm
    finally:
        llm.close()


def generate_one(llm: LLM, prompt: Any = PROMPT, params: SamplingParams = GREEDY) -> Any:
    [output] = llm.generate([prompt], params)
    llm.scheduler.check_integrity()
    assert output.error is None
    return output


def page_files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "pages").glob("*/*") if path.is_file())


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("timed out waiting for the condition")
