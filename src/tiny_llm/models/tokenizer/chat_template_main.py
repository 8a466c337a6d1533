"""Program that renders chat templates for `sandbox.py`.

    python chat_template_main.py MAX_BYTES

A template is an untrusted Jinja program. It runs in Jinja's sandbox with the same settings and
functions as in `transformers`, for which checkpoints' templates are written.
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
    """Renders a conversation into a prompt.

    Args:
        messages: messages {"role": …, "content": …}; keys with value None are dropped.
        variables: template variables such as `add_generation_prompt` and `enable_thinking`.

    Raises:
        jinja2.TemplateError: the template is invalid or rejects the conversation.
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
    """Serializes to plain JSON; Jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def main() -> None:
    """Renders conversations from standard input, one JSON object per line."""
    num_bytes = int(sys.argv[1])
    _compile("")  # imports Jinja before the time limit applies
    with suppress(ValueError, OSError):  # macOS does not support this limit
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    print("{}", flush=True)
    for line in sys.stdin:
        try:
            given = json.loads(line)
            text = render_chat(given["template"], given["messages"], **given["rest"])
            text.encode()
            response = {"text": text}
        except UnicodeEncodeError:
            response = {"error": "the rendered text has an unpaired surrogate"}
        except MemoryError:
            response = {"error": "it used too much memory"}
        except RecursionError:
            response = {"error": "its calls are nested too deeply"}
        except Exception as error:  # a template can raise anything
            response = {"error": str(error) or type(error).__name__}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
