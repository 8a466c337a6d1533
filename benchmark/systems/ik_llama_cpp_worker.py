"""ik_llama.cpp as a worker: `python -m benchmark.systems.ik_llama_cpp_worker FILE.gguf`.

Runs `llama-bench`, which loads the file for each measurement, excludes loading from the reported
time, and decodes only one sequence. The first measurement of a metric is made without and with
run-time repacking of the weights (`-rtr`), later ones with the faster setting.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from .worker import DECODE_STEPS, UnsupportedError, num_threads, serve

SETTINGS = {"-rtr 0": ("-rtr", "0"), "-rtr 1": ("-rtr", "1")}


class IkLlamaCpp:
    """A GGUF file's model, run by ik_llama.cpp with flash attention."""

    def __init__(self, file: Path, binary: str, weight_bits: float):
        threads = str(num_threads())
        self._command = [
            binary,
            "-m",
            str(file),
            "-t",
            threads,
            "-fa",
            "1",
            "-r",
            "1",
            "-o",
            "json",
        ]
        self._fastest: dict[tuple[str, ...], str] = {}
        self.weight_bits = weight_bits
        row = self._run("-p", "1", "-n", "0", "-w", "0")
        self.about = (
            f"ik_llama.cpp {row['build_commit']}, {file.stem}, float16 KV, {threads} threads"
        )

    def prefill(self, tokens: int) -> dict[str, Any]:
        """See `System`."""
        return self._measure("-p", str(tokens), "-n", "0")

    def decode(self, batch: int, context: int) -> dict[str, Any]:
        """See `System`."""
        if batch > 1:
            raise UnsupportedError("llama-bench decodes one sequence")
        reply = self._measure("-p", "0", "-n", "0", "-gp", f"{context},{DECODE_STEPS}")
        return {**reply, "seconds": reply["seconds"] / DECODE_STEPS}

    def _measure(self, *metric: str) -> dict[str, Any]:
        fastest = self._fastest.get(metric)
        seconds = {
            name: self._run(*metric, *flags)["avg_ns"] / 1e9
            for name, flags in SETTINGS.items()
            if fastest in (None, name)
        }
        name = self._fastest[metric] = min(seconds, key=lambda each: seconds[each])
        return {"seconds": seconds[name], "note": name}

    def _run(self, *flags: str) -> dict[str, Any]:
        done = subprocess.run([*self._command, *flags], capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise RuntimeError(f"llama-bench: {lines[-1]}")
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows[-1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--weight-bits", type=float, required=True)
    arguments = parser.parse_args()
    serve(lambda: IkLlamaCpp(arguments.file, arguments.binary, arguments.weight_bits))
