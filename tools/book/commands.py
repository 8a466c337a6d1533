"""Runs the book's runnable code blocks and compares their output.

    ```sh runnable                 every line must succeed, run in the repository's root
    ```python runnable             a Python program that must succeed
    ```sh runnable clang           like `sh runnable`, but skipped if clang is missing
    ```text output                 expected output of the preceding block; … matches anything

Only standard output is compared. In commands, `pdm` stands for the project's `pdmw`.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.metal_emulator import has_clang

from . import ROOT, BookError
from .chapters import Block, blocks, chapters, where

TIMEOUT = 120  # seconds per block


@dataclass(frozen=True)
class Command:
    """A runnable block and its expected output, if any."""

    chapter: Path
    block: Block
    output: str | None


def commands_of(chapter: Path) -> Iterator[Command]:
    """Runnable blocks of a chapter with their output blocks."""
    found = list(blocks(chapter))
    for index, block in enumerate(found):
        if "runnable" in block.words:
            after = found[index + 1] if index + 1 < len(found) else None
            has_output = after is not None and "output" in after.words
            yield Command(chapter, block, after.text if after and has_output else None)
        elif "output" in block.words and (index == 0 or "runnable" not in found[index - 1].words):
            raise BookError(f"{where(chapter, block.line)}: output block without a runnable block")


def run(command: Command) -> None:
    """Runs one block; raises `BookError` if it fails or its output differs."""
    location = where(command.chapter, command.block.line)
    if command.block.language == "python":
        arguments = [sys.executable, "-c", command.block.text]
    elif command.block.language == "sh":
        arguments = ["bash", "-euo", "pipefail", "-c", command.block.text]
    else:
        raise BookError(
            f"{location}: language '{command.block.language}' is not runnable; use sh or python"
        )
    with tempfile.TemporaryDirectory() as folder:
        pdm = Path(folder) / "pdm"
        pdm.write_text(f'#!/bin/sh\nexec "{ROOT}/pdmw" "$@"\n')
        pdm.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "TINY_LLM_MINE": f"{folder}/mine",  # does not exist, so the commands use the solution
        }
        try:
            result = subprocess.run(
                arguments,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise BookError(f"{location}: timeout after {TIMEOUT} seconds") from error
    if result.returncode != 0:
        raise BookError(
            f"{location}: exit status {result.returncode}\n{result.stdout}{result.stderr}"
        )
    if command.output is not None and not matches(result.stdout, command.output):
        raise BookError(f"{location}: got output\n{result.stdout}\nexpected\n{command.output}")


def matches(printed: str, expected: str) -> bool:
    """Whether the output matches the pattern; … stands for any text, including newlines."""
    parts = [re.escape(part) for part in _trimmed(expected).split("…")]
    return re.fullmatch(".*".join(parts), _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def run_all() -> int:
    """Runs all blocks, two at a time, printing durations; returns their number."""
    commands = [command for chapter in chapters() for command in commands_of(chapter)]
    if not has_clang():
        needing = [command for command in commands if "clang" in command.block.words]
        commands = [command for command in commands if command not in needing]
        print(f"{len(needing)} commands require clang 19 and are skipped")
    with ThreadPoolExecutor(max_workers=2) as pool:
        for command, seconds in zip(commands, pool.map(_timed, commands), strict=True):
            print(f"{where(command.chapter, command.block.line)}: {seconds:.1f} s", flush=True)
    return len(commands)


def _timed(command: Command) -> float:
    started = time.perf_counter()
    run(command)
    return time.perf_counter() - started
