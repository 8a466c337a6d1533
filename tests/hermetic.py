"""Resets process state inherited by pytest and passed on to child processes.

conftest.py calls `reset_process` before other imports, and `reset_display` after pytest has read
the terminal variables. Programs started by tests are then independent of `nohup`,
the CI runner and the user's profile.
"""

import locale
import os
import re
import signal
import sys
import time
import warnings
from contextlib import suppress

# Environment variables that are never cleared: test configuration, and the interpreter's paths,
# debugger and optimization level.
KEPT = re.compile(
    r"TINY_LLM_(CLANG|CPU_ISA|EMULATED_METAL\w*|FRAMEWORKS_\w+|MINE|NUM_THREADS|PEERS_PYTHON|REPORT)"
    r"|PYTHON(BREAKPOINT|HOME|OPTIMIZE|PATH|PLATLIBDIR|PYCACHEPREFIX)"
)

# Environment variables that are cleared: settings of the locale, the interpreter, proxies, model
# hubs, API clients, servers, MPI launchers, MLX and tiny-llm.
CLEARED = re.compile(
    r"LANG|LANGUAGE|LC_\w+|PYTHON\w+|(ALL|FTP|HTTP|HTTPS|NO)_PROXY"
    r"|(HF|HUGGING_?FACE|TOKENIZERS|TRANSFORMERS)_\w+"
    r"|(ANTHROPIC|OPENAI|RAY|UVICORN|MLX|OMPI|PMI|PMIX|PRTE|TINY_LLM)_\w+",
    re.IGNORECASE,
)

DISPLAY = re.compile(
    r"TERM|COLORTERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|PY_COLORS|CLICOLOR\w*|TTY_\w+|JUPYTER_\w+"
)

# Saved before it is cleared, because it has already set this process's warning filters.
WARNINGS = os.environ.get("PYTHONWARNINGS")

# Signals that stay ignored: SIGPIPE and SIGXFSZ, which Python itself ignores and `subprocess`
# restores; SIGTTIN and SIGTTOU, which would stop background jobs.
LEFT_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTIN, signal.SIGTTOU}


def reset_process() -> None:
    """Resets signals, umask, standard descriptors, locale and environment."""
    _reset_signals()
    os.umask(0o022)
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # stdin, stdout or stderr was closed
        os.set_inheritable(null, True)
    os.close(null)
    _clear(CLEARED)
    with suppress(locale.Error):  # C.UTF-8 does not exist before macOS 15
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.environ["HF_HUB_OFFLINE"] = "1"  # tests must not use the network
    os.environ["HF_HOME"] = "/there-is-no-hub-cache"


def reset_display() -> None:
    """Clears terminal variables and the warning filters of PYTHONWARNINGS."""
    _clear(DISPLAY)
    if WARNINGS:
        sys.warnoptions.clear()
        warnings.simplefilter("default")


def _reset_signals() -> None:
    """Restores default dispositions in child processes and unblocks all signals.

    `exec` keeps ignored signals ignored but resets handlers. With a no-op handler, `nohup` protects
    pytest but not its children.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - LEFT_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    # Python must handle SIGINT, because tests raise it in this process.
    if signal.getsignal(signal.SIGINT) is _do_nothing:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _do_nothing(*_: object) -> None:
    """No-op handler for signals that the parent ignores."""


def _clear(names: re.Pattern[str]) -> None:
    for name in list(os.environ):
        if names.fullmatch(name) and not KEPT.fullmatch(name):
            del os.environ[name]
