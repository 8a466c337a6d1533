"""Program of sandboxed processes: JSON lines under limits of memory and CPU time.

    python -P main.py HANDLER MAX_BYTES SECONDS ARGUMENT …

HANDLER is a Python file with a function `make_handler(ARGUMENT, …)`. It returns a function that
takes a request's fields as keywords and returns the response's fields; an exception becomes the
response's "error". The file is loaded without importing `tiny_llm`.
"""

import json
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any


def main() -> None:
    """Writes a response once the handler is loaded, then one for each request."""
    file, max_bytes, seconds, *arguments = sys.argv[1:]
    _limit_memory(2 * int(max_bytes))  # loading may take more memory than requests do
    try:
        handler = _load(file, arguments)
    except BaseException as error:  # a panic in a library's Rust code is not an Exception
        _respond({"error": _describe(error)})
        return
    _limit_memory(int(max_bytes))
    _respond({})
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, float(seconds))  # its signal ends the process
        try:
            response = handler(**json.loads(line))
        except BaseException as error:
            response = {"error": _describe(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _respond(response)


def _load(file: str, arguments: Sequence[str]) -> Callable[..., dict[str, Any]]:
    spec = spec_from_file_location("handler", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    handler: Callable[..., dict[str, Any]] = module.make_handler(*arguments)
    return handler


def _describe(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "it used too much memory"
    if isinstance(error, RecursionError):
        return "its calls are nested too deeply"
    return " ".join(str(error).split()) or type(error).__name__


def _respond(response: dict[str, Any]) -> None:
    print(json.dumps(response), flush=True)


def _limit_memory(num_bytes: int) -> None:
    with suppress(ValueError, OSError):  # macOS does not support this limit
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


if __name__ == "__main__":
    main()
