"""Command line of a benchmark: its parser, errors, exit status and line of JSON."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tiny_llm import UserError

from .systems.client import WorkerError, exit_on_sigterm


def benchmark_parser(doc: str | None) -> argparse.ArgumentParser:
    """Parser of a benchmark's command line; `doc` is the docstring of its module."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)


def run_command(
    name: str, args: argparse.Namespace, run: Callable[[argparse.Namespace], int]
) -> int:
    """Runs a benchmark; SIGTERM exits through its `finally` blocks.

    Args:
        name: prefix of error messages.
        run: measures, prints the result with `print_json`, and returns the exit status.

    Returns:
        The exit status of `run`; 2 if the user's input is invalid or another system failed.
    """
    exit_on_sigterm()
    try:
        return run(args)
    except (UserError, WorkerError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


def print_json(result: Mapping[str, Any], status: int = 0) -> int:
    """Prints a benchmark's last line of output; returns `status`."""
    print(json.dumps(result))
    return status
