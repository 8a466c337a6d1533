"""Fork server: runs pytest sessions with preloaded imports.

Importing the tests' dependencies (MLX, mlx_lm, scipy) takes seconds, several times as long as a
task's tests. This process imports them once; each session is a fork that imports the job's
`tiny_llm`: a learner's or the solution's. Reads one JSON job per line from stdin and writes one
line per finished session. Linux only: Metal does not survive a fork.
"""

import gc
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

PRELOADED = ("pytest", "mlx.core", "mlx.nn", "mlx_lm.models.qwen3", "scipy.stats", "hypothesis")


def main() -> None:
    """Serves jobs until stdin is closed."""
    for name in PRELOADED:
        importlib.import_module(name)
    assert "tiny_llm" not in sys.modules
    gc.freeze()  # excludes the preloaded modules from pytest's garbage collections
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run(job)
        # Runs one session at a time; callers start several servers to run sessions concurrently.
        _, status = os.waitpid(pid, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


def run(job: dict[str, Any]) -> None:
    """Runs a pytest session in the forked child and exits."""
    status = 3
    try:
        output = os.open(job["output"], os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(job["environment"])
        if job["tree"] is not None:
            use_tree(Path(job["tree"]))
        import pytest

        status = int(pytest.main(job["arguments"]))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def use_tree(tree: Path) -> None:
    """Loads a learner's sitecustomize, as Python does at startup with `site/` on PYTHONPATH."""
    spec = importlib.util.spec_from_file_location(
        "sitecustomize", tree / "site" / "sitecustomize.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    main()
