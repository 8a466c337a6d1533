"""`python -m tests.server.fault_injection FAULT …`: a server with faults.

`raises`, `hangs` and `dies` affect steps with a request whose prompt starts with `FAULTY_PROMPT`.
`slow` delays every step. `impatient` also delays every step, and times clients out after 0.5 s.
`slow_load` delays loading by `LOAD_SECONDS` and sends frequent keep-alive comments.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tiny_llm.cli import serve
from tiny_llm.engine.model_runner import ModelRunner
from tiny_llm.server.http import uvicorn_protocol
from tiny_llm.server.process import ServerProcess

FAULTY_PROMPT = [7, 7, 7]
LOAD_SECONDS = 0.5


def raise_error() -> None:
    raise RuntimeError("broken in /secret/path")


FAULTS: dict[str, Callable[[], object]] = {
    "raises": raise_error,
    "hangs": partial(time.sleep, 1000),
    "dies": sys.exit,  # ends the engine thread
    "slow": partial(time.sleep, 0.05),
    "impatient": partial(time.sleep, 0.03),
    "slow_load": lambda: None,
}


def main() -> int:
    fault, run = FAULTS[sys.argv[1]], ModelRunner.run

    def run_with_fault(self: ModelRunner, step: Any) -> Any:
        prompts = [chunk.request.token_ids[:3] for chunk in step.chunks]
        if FAULTY_PROMPT in prompts or sys.argv[1] in ("slow", "impatient"):
            fault()
        return run(self, step)

    ModelRunner.run = run_with_fault  # type: ignore[method-assign]
    settings: dict[str, Any] = {}
    if sys.argv[1] == "slow_load":
        load = serve._load
        serve._load = lambda *args: (time.sleep(LOAD_SECONDS), load(*args))[1]  # type: ignore
        settings = {"keep_alive": 0.1}
    if sys.argv[1] == "impatient":
        settings = {"max_queued_outputs": 8, "keep_alive": 0.02, "body_timeout": 0.5}
        uvicorn_protocol.SEND_TIMEOUT = 0.5
    start = ServerProcess.__init__
    ServerProcess.__init__ = (  # type: ignore[method-assign]
        lambda self, given, *others: start(self, replace(given, **settings), *others)
    )
    return serve.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
