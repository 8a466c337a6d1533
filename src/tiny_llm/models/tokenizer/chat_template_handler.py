"""Request handler that renders chat templates in a sandboxed process.

A template is an untrusted Jinja program. It runs in Jinja's sandbox with the same settings and
functions as in `transformers`, for which checkpoints' templates are written.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn


def render_chat(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """Renders a conversation into a prompt.

    Args:
        messages: messages {"role": …, "content": …}; keys other than `content`
            are dropped if their value is None.
        variables: template variables such as `add_generation_prompt` and `enable_thinking`.

    Raises:
        jinja2.TemplateError: the template is invalid or rejects the conversation.
    """
    given = [{k: v for k, v in m.items() if k == "content" or v is not None} for m in messages]
    text: str = _compile(template).render(messages=given, **variables)
    return text


@lru_cache(maxsize=8)
def _compile(template: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # imported late: slow

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
    """The filter `tojson` without the HTML escaping of Jinja's built-in filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def make_handler() -> Callable[..., dict[str, str]]:
    """Returns the request handler; see `sandbox_main.py`."""
    _compile("")  # imports Jinja before the time limit applies
    return _handle


def _handle(
    template: str, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
) -> dict[str, str]:
    text = render_chat(template, messages, **variables)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the rendered text has an unpaired surrogate") from None
    return {"text": text}
