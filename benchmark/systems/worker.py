"""Worker process: loads a system and serves measurement requests.

Requests and replies are lines of JSON on standard input and output; library output goes to standard
error.
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
    """Interface of a system that a worker measures."""

    about: str  # version and settings for the report
    weight_bits: float  # bits per weight in memory, scales included

    def prefill(self, tokens: int) -> dict[str, Any]:
        """Prefills `tokens` tokens; returns {"seconds": …}, optionally with a "note"."""

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """Decodes a batch; returns {"seconds": time per step}, optionally with a "note"."""


class UnsupportedError(Exception):
    """The system does not support this measurement; the message has the reason."""


def serve(load: Callable[[], System]) -> None:
    """Calls `load`, which computes a first token; then serves requests until EOF."""
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
        kind = request.pop("kind")
        try:
            if kind == "prefill":
                reply(system.prefill(request["tokens"]))
            elif kind == "decode":
                reply(system.decode(request["batch"], request["tokens"]))
            else:  # an optional method of the system: embed, generate, loss, predict or serve
                reply(getattr(system, kind)(**request))
        except UnsupportedError as error:
            reply({"unsupported": str(error)})
        except Exception as error:
            reply({"failed": f"{type(error).__name__}: {error}"})


def serve_folder(description: str | None, load: Callable[[Path], System]) -> None:
    """Command line of a worker whose only argument is a checkpoint folder."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    serve(lambda: load(arguments.folder))


def serve_or_export(
    description: str,
    load: Callable[[Path, bool], System],
    export: Callable[[Path, Path, bool], None],
) -> None:
    """Command line of a worker whose system exports unquantized checkpoints.

    Args:
        load: loads the system from (exported folder, exact) and computes one token.
        export: called with (unquantized folder, exported folder, exact); writes the latter.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--export", type=Path, metavar="SOURCE", help="unquantized checkpoint to export"
    )
    parser.add_argument("--exact", action="store_true", help="float32 activations instead of 8-bit")
    arguments = parser.parse_args()
    if arguments.export is not None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        export(arguments.export, arguments.folder, arguments.exact)
    else:
        serve(lambda: load(arguments.folder, arguments.exact))


def num_threads() -> int:
    """Number of threads requested by the parent process."""
    return int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))


def peak_bytes() -> int:
    """Peak resident memory of this process."""
    # Not getrusage on Linux: it includes the parent's memory at the time of the fork.
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def resident_bytes() -> int:
    """Resident memory of this process; 0 on macOS."""
    return _status_bytes("VmRSS")


def _status_bytes(name: str) -> int:
    """Size in bytes from a line of Linux's /proc/self/status; 0 if missing."""
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def decode_seconds(step: Callable[[], object]) -> float:
    """Mean seconds per decoding step, after a warm-up step."""
    step()
    start = time.perf_counter()
    for count in range(1, DECODE_STEPS + 1):
        step()
        elapsed = time.perf_counter() - start
        if count >= 3 and elapsed > DECODE_SECONDS:
            break
    return elapsed / count


def token_ids(count: int, vocab_size: int) -> list[int]:
    """Deterministic token ids, the same for every system."""
    return [(13 + 7919 * i) % vocab_size for i in range(count)]
