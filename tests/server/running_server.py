"""Server in a subprocess, started through the command line."""

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx2

ROOT = Path(__file__).resolve().parents[2]


class RunningServer:
    """`tiny-llm serve` on a free port, by default with the demo model.

    Args:
        fault: name of a fault in `fault_injection.py`, or None.
        script: script file for `scripted_model.py`, or None.
        ready: whether to wait until the model has loaded.
    """

    def __init__(
        self,
        *flags: str | bytes,
        fault: str | None = None,
        script: Path | None = None,
        ready: bool = True,
        max_files: int | None = None,
    ):
        module = ["tiny_llm", "serve"] if fault is None else ["tests.server.fault_injection", fault]
        if script is not None:
            module = ["tests.server.scripted_model", str(script)]
        model = [] if "--model" in flags else ["--model", "demo"]
        command = [sys.executable, "-m", *module, *model, "--port", "0", *flags]
        if max_files is not None:
            command = ["sh", "-c", f'ulimit -n {max_files}; exec "$@"', "sh", *command]
        self.process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._arrived = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = self.wait_for(r"listening: (http://\S+)")
        if ready:
            self.wait_for("ready: ")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._arrived:
                self.lines.append(line)
                self._arrived.notify_all()
        with self._arrived:
            self.lines.append("(end of the log)")
            self._arrived.notify_all()

    def wait_for(self, pattern: str) -> str:
        """Waits for a log line that matches; returns group 1 if any, else the match."""
        num_searched = 0
        with self._arrived:
            while True:
                for line in self.lines[num_searched:]:
                    match = re.search(pattern, line)
                    if match:
                        return match[1] if match.re.groups else match[0]
                    assert "(end of the log)" not in line, "".join(self.lines)
                num_searched = len(self.lines)
                assert self._arrived.wait(120), "".join(self.lines)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=30)

    def post(self, path: str, body: object, **options: object) -> httpx2.Response:
        return httpx2.post(self.url + path, json=body, timeout=120, **options)

    def metric(self, name: str) -> float:
        match = re.search(rf"^tiny_llm:{name}{{[^}}]*}} (\S+)", self.get("/metrics").text, re.M)
        assert match, f"no metric {name}"
        return float(match[1])

    @property
    def is_empty(self) -> bool:
        """Whether no requests run or wait and no pages or state slots are in use."""
        names = "num_requests_running|num_requests_waiting|kv_cache_usage_perc|state_slots_used"
        metrics = self.get("/metrics").text
        values = re.findall(rf"^tiny_llm:(?:{names}){{[^}}]*}} (\S+)", metrics, re.M)
        assert len(values) >= 4, metrics
        return not any(map(float, values))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, waits for the process to exit and returns its status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


def eventually(condition: Callable[[], bool]) -> bool:
    """Waits up to 30 s for a condition; returns whether it became true."""
    deadline = time.monotonic() + 30
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
