"""ik_llama.cpp as a worker: `python -m benchmark.systems.ik_llama_cpp_worker FILE.gguf`.

Runs `llama-bench` and, for batches, `llama-batched-bench` from the same folder. They load the file
for each measurement and exclude loading from the reported time. The first measurement of a metric
is made without and with run-time repacking of the weights (`-rtr`), later ones with the faster
setting.
"""

import argparse
import json
import re
import subprocess
from pathlib import Path
from typing import Any

from .worker import DECODE_STEPS, UnsupportedError, num_threads, serve

SETTINGS = {"-rtr 0": False, "-rtr 1": True}  # llama-batched-bench has a flag without a value


class IkLlamaCpp:
    """A GGUF file's model, run by ik_llama.cpp with flash attention."""

    def __init__(self, file: Path, binary: str, weight_bits: float):
        threads = str(num_threads())
        self._binary = Path(binary)
        self._flags = ["-m", str(file), "-t", threads, "-fa", "1"]
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
            lengths = "-npp", str(context), "-ntg", str(DECODE_STEPS), "-npl", str(batch)
            return self._measure("-c", str(batch * (context + DECODE_STEPS)), *lengths)
        reply = self._measure("-p", "0", "-n", "0", "-gp", f"{context},{DECODE_STEPS}")
        return {**reply, "seconds": reply["seconds"] / DECODE_STEPS}

    def _measure(self, *metric: str) -> dict[str, Any]:
        fastest = self._fastest.get(metric)
        seconds = {
            name: self._seconds(metric, repack)
            for name, repack in SETTINGS.items()
            if fastest in (None, name)
        }
        name = self._fastest[metric] = min(seconds, key=lambda each: seconds[each])
        return {"seconds": seconds[name], "note": name}

    def _seconds(self, metric: tuple[str, ...], repack: bool) -> float:
        """Seconds of a prompt or of a sequence's tokens; of a batch, seconds per step."""
        if "-npl" not in metric:
            return self._run(*metric, "-rtr", str(int(repack)))["avg_ns"] / 1e9
        binary = self._binary.with_name("llama-batched-bench")
        if not binary.exists():
            raise UnsupportedError(f"batches require {binary.name} beside {self._binary.name}")
        output = self._output(str(binary), *metric, *(["-rtr"] if repack else []))
        row = next(line for line in output.splitlines() if re.match(r"\| *\d", line))
        return float(row.split("|")[7]) / DECODE_STEPS

    def _run(self, *flags: str) -> dict[str, Any]:
        rows = json.loads(self._output(str(self._binary), *flags, "-r", "1", "-o", "json"))
        row: dict[str, Any] = rows[-1]
        return row

    def _output(self, binary: str, *flags: str) -> str:
        done = subprocess.run([binary, *self._flags, *flags], capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise RuntimeError(f"{Path(binary).name}: {lines[-1]}")
        return done.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--weight-bits", type=float, required=True)
    arguments = parser.parse_args()
    serve(lambda: IkLlamaCpp(arguments.file, arguments.binary, arguments.weight_bits))
