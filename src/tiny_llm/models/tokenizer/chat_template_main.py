"""Chat templates: how a conversation goes through one.

A template is a Jinja program that came with the weights. It runs in Jinja's sandbox, with the
settings and functions that `transformers` gives it; checkpoints are written for those. This file is
also the program that `chat_template_sandbox.py` starts, which bounds time and memory.
"""

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn


def render_chat(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """A conversation as the text that the model was trained to continue.

    Args:
        template: Jinja.
        messages: {"role": …, "content": …}; a value of None is the same as no entry.
        variables: what else the template reads: `add_generation_prompt`, `enable_thinking`, …

    Raises:
        jinja2.TemplateError: the template is not valid, or refuses the conversation.
    """
    given = [{key: value for key, value in m.items() if value is not None} for m in messages]
    text: str = _compile(template).render(messages=given, **variables)
    return text


@lru_cache(maxsize=8)
def _compile(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # only chats need it

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON; Jinja's own filter escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def main() -> None:
    """Renders what comes as JSON, a line each, until there is no more: see `template_process`."""
    num_bytes = int(sys.argv[1])
    _compile("")  # imports Jinja, which is not the template's time
    with suppress(ValueError, OSError):  # macOS does not have this bound
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    print("{}", flush=True)
    for line in sys.stdin:
        try:
            given = json.loads(line)
            response = {"text": render_chat(given["template"], given["messages"], **given["rest"])}
        except MemoryError:
            response = {"error": "it takes too much memory"}
        except RecursionError:
            response = {"error": "it calls itself without end"}
        except Exception as error:  # a template is a program, which can fail in any way
            response = {"error": str(error) or type(error).__name__}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
