"""Chat templates: where a checkpoint keeps them, and how a conversation goes through one.

A template is a Jinja program that came with the weights. It runs in Jinja's sandbox, with the
settings and functions that `transformers` gives it; checkpoints are written for those.
"""

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

# One template, or several by name: "default", and for example "tool_use".
Templates = str | dict[str, str]


def find_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> Templates | None:
    """A checkpoint's templates: those in files of their own, else the tokenizer's.

    Args:
        folder: of the checkpoint.
        tokenizer_config: its `tokenizer_config.json`.

    Returns:
        None if it has none.
    """
    default = folder / "chat_template.jinja"
    files = {"default": default} if default.is_file() else {}
    files |= {file.stem: file for file in (folder / "additional_chat_templates").glob("*.jinja")}
    found = {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    if found:
        return found["default"] if set(found) == {"default"} else found
    listed = tokenizer_config.get("chat_template")
    if isinstance(listed, list):
        return {entry["name"]: entry["template"] for entry in listed}
    return listed


def choose_template(templates: Templates, has_tools: bool) -> str:
    """The template to use.

    Raises:
        ValueError: there are several and none is the default.
    """
    if isinstance(templates, str):
        return templates
    if has_tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" not in templates:
        raise ValueError(
            f"expected a chat template named 'default', got {', '.join(sorted(templates))}."
        )
    return templates["default"]


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


def _render_for_parent() -> None:
    """Renders what comes as JSON, a line each, until there is no more: see `template_process`."""
    num_bytes = int(sys.argv[1])
    _compile("")  # imports Jinja, which is not the template's time
    with suppress(ValueError, OSError):  # macOS does not have this bound
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    print("{}", flush=True)
    for line in sys.stdin:
        try:
            given = json.loads(line)
            answer = {"text": render_chat(given["template"], given["messages"], **given["rest"])}
        except MemoryError:
            answer = {"error": "it takes too much memory"}
        except Exception as error:  # a template is a program, which can fail in any way
            answer = {"error": str(error) or type(error).__name__}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _render_for_parent()
