"""The inside of a worker's process: loads a system, then measures what the parent asks for.

Requests and replies are lines of JSON on standard input and output; whatever a library prints goes
to standard error.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

DECODE_STEPS = 48
DECODE_SECONDS = 2.0


class System(Protocol):
    """What a worker can be asked.

    Attributes:
        about: version and settings, for the report.
        weight_bits: of a weight in memory, scales included.
    """

    about: str
    weight_bits: float

    def prefill(self, tokens: int) -> dict[str, Any]:
        """Runs a prompt of so many tokens: {"seconds": …}, maybe with a "note"."""

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """Decodes tokens for sequences with a past: {"seconds": … a step}, maybe with a "note"."""


class UnsupportedError(Exception):
    """The system is not measured at this; the sentence says why."""


def serve(load: Callable[[], System]) -> None:
    """Loads, reports that the first token was there, and answers requests until the input ends.

    Args:
        load: loads the system and computes one token.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    system = load()
    reply(
        {
            "peak_bytes": peak_bytes(),
            "about": system.about,
            "weight_bits": system.weight_bits,
        }
    )
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["kind"] == "prefill":
                reply(system.prefill(request["tokens"]))
            elif request["kind"] == "predict":
                predict: Any = getattr(system, "predict", None)  # llama.cpp's has it
                reply(predict(request["ids"]))
            elif request["kind"] == "answer":
                answer: Any = getattr(system, "answer", None)  # OpenVINO and ONNX Runtime have it
                reply(answer(request["ids"], request["tokens"]))
            elif request["kind"] == "serve":
                serving: Any = getattr(system, "serve", None)  # llama.cpp's has it
                reply(serving(request["prompts"], request["output_lens"], request["places"]))
            else:
                reply(system.decode(request["batch"], request["tokens"]))
        except UnsupportedError as error:
            reply({"unsupported": str(error)})
        except Exception as error:
            reply({"failed": f"{type(error).__name__}: {error}"})


def serve_or_export(
    description: str,
    load: Callable[[Path, bool], System],
    export: Callable[[Path, Path, bool], None],
) -> None:
    """The command of a system that quantizes a plain folder with an exporter of its own.

    Args:
        description: for --help.
        load: (exported folder, exact) -> the system, which has computed one token.
        export: (plain folder, exported folder, exact) -> writes the second.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--export", type=Path, metavar="SOURCE", help="make the folder from this")
    parser.add_argument("--exact", action="store_true", help="do not round activations to 8 bits")
    arguments = parser.parse_args()
    if arguments.export is not None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        export(arguments.export, arguments.folder, arguments.exact)
    else:
        serve(lambda: load(arguments.folder, arguments.exact))


def num_threads() -> int:
    """How many threads the parent wants a system to use."""
    return int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))


def peak_bytes() -> int:
    """The most memory that this process has had resident so far."""
    # Not getrusage where that can be: on Linux it counts the parent at the time of the fork.
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def resident_bytes() -> int:
    """The memory that this process has resident now; 0 where the system does not say (macOS)."""
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    """A line of Linux's /proc/self/status; 0 if there is none."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def decode_seconds(step: Callable[[], object]) -> float:
    """Seconds of one decode step: the mean of many, after one that does not count."""
    step()
    start = time.perf_counter()
    for count in range(1, DECODE_STEPS + 1):
        step()
        elapsed = time.perf_counter() - start
        if count >= 3 and elapsed > DECODE_SECONDS:
            break
    return elapsed / count


def token_ids(count: int, vocab_size: int) -> list[int]:
    """Token ids that no tokenizer chose, the same in every system."""
    return [(13 + 7919 * i) % vocab_size for i in range(count)]
