"""`python -m tests.server.faulty FAULT …`: the server with an engine that fails.

A fault concerns steps that compute a prompt which contains the token 7: others succeed.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

from tiny_llm.cli import serve
from tiny_llm.engine.runner import Runner

UNLUCKY = 7


def raises(step: Any) -> None:
    raise RuntimeError("broken in /secret/path")


def hangs(step: Any) -> None:
    time.sleep(1000)


def dies(step: Any) -> None:
    raise SystemExit("the thread ends")


def is_slow(step: Any) -> None:
    time.sleep(0.05)


FAULTS: dict[str, Callable[[Any], None]] = {
    "raises": raises,
    "hangs": hangs,
    "dies": dies,
    "slow": is_slow,
}


def main() -> int:
    fault, run = FAULTS[sys.argv[1]], Runner.run

    def faulty(self: Runner, step: Any) -> Any:
        if fault is is_slow or any(UNLUCKY in chunk.request.token_ids for chunk in step.chunks):
            fault(step)
        return run(self, step)

    Runner.run = faulty  # type: ignore[method-assign]
    return serve.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
