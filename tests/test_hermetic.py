"""Hermetic tests: results do not depend on pytest's parent process."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hermetic import LEFT_IGNORED

ROOT = Path(__file__).resolve().parent.parent

# Runs a command in the process state that `nohup` or a daemon would pass on.
HOSTILE_PARENT = """
import os, resource, signal, sys
ends = [os.pipe() for _ in range(20)]
for number in {number for pair in ends for number in pair}:
    os.set_inheritable(number, True)
for name in "HUP INT QUIT PIPE ALRM TERM USR1 TSTP CHLD PROF".split():
    signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
os.umask(0o077)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.close(0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

HOSTILE_VARIABLES = """
    LANG=tr_TR.UTF-8 LANGUAGE=tr LC_ALL=tr_TR.UTF-8 TZ=Pacific/Chatham
    TERM=dumb COLUMNS=20 LINES=5 NO_COLOR=1 FORCE_COLOR=1
    PYTHONWARNINGS=error PYTHONHASHSEED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONIOENCODING=latin-1
    http_proxy=http://127.0.0.1:9 HTTPS_PROXY=http://127.0.0.1:9 ALL_PROXY=http://127.0.0.1:9
    HF_HOME=/nowhere HF_HUB_CACHE=/nowhere HF_TOKEN=x HF_ENDPOINT=http://127.0.0.1:9
    HF_HUB_OFFLINE=perhaps TRANSFORMERS_CACHE=/nowhere TRANSFORMERS_OFFLINE=x
    OPENAI_API_KEY=x OPENAI_BASE_URL=http://127.0.0.1:9 ANTHROPIC_AUTH_TOKEN=x
    MLX_RANK=3 MLX_HOSTFILE=/nowhere OMPI_COMM_WORLD_RANK=3
    TINY_LLM_API_KEY=x TINY_LLM_RECORDING=off
    TINY_LLM_ATTENTION=loops TINY_LLM_FUSED=loops TINY_LLM_PRODUCT=loops
"""
HOSTILE_ENVIRONMENT = dict(variable.split("=") for variable in HOSTILE_VARIABLES.split())

# Tests that inherited process state could affect: Ctrl-C, terminal, server and client.
SENSITIVE_TESTS = (
    "tests/test_hermetic.py::test_child_process_starts_from_defaults",
    "tests/test_hermetic.py::test_ctrl_c_interrupts_this_process",
    "tests/cli/test_batch.py::test_interrupt_restores_the_terminal",
    "tests/cli/test_main.py::test_interrupt_prints_no_traceback",
    "tests/server/test_chat_command.py::test_interrupt_stops_only_the_output",
    "tests/server/test_lifecycle.py::test_second_signal_exits_immediately",
)

CHILD = """
import json, os, signal, sys, warnings
umask = os.umask(0)
ignored = [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
blocked = list(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
errors = [action for action, *_ in warnings.filters if action == "error"]
json.dump([ignored, blocked, umask, errors, sys.stdin is None, dict(os.environ)], sys.stdout)
"""


def test_child_process_starts_from_defaults():
    child = subprocess.run([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, check=True)
    ignored, *others, environment = json.loads(child.stdout)
    assert set(ignored) <= LEFT_IGNORED
    assert others == [[], 0o022, [], False], "signals blocked, umask, warnings, closed stdin"
    assert not HOSTILE_ENVIRONMENT.items() & environment.items()


def test_ctrl_c_interrupts_this_process():
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
def test_results_under_a_hostile_parent():
    pytest_command = ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *SENSITIVE_TESTS]
    result = subprocess.run(
        [sys.executable, "-c", HOSTILE_PARENT, *pytest_command],
        cwd=ROOT,
        env={**os.environ, **HOSTILE_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-1000:]
    assert re.search(rf"^{len(SENSITIVE_TESTS)} passed", result.stdout, re.MULTILINE)
