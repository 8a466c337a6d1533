"""Chat templates: lookup, selection, rendering, and reasoning tags.

A chat template is a Jinja program that comes with the checkpoint. It is rendered in Jinja's
sandbox, which blocks access to files and Python internals, with the settings and functions of
`transformers`, for which templates are written.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NoReturn

from ...errors import UserError, summarize
from ..checkpoint.safe_io import ModelError, read_text
from ..families.config_fields import invalid_field

# (start, end) tags of reasoning. Gemma 4's start tag is a special token and a label.
DEFAULT_TAGS = ("<think>", "</think>")
GEMMA4_TAGS = ("<|channel>thought", "<channel|>")
MISTRAL_TAGS = ("[THINK]", "[/THINK]")


def think_tags(tokenizer: Any) -> tuple[str, str]:
    """Tags in the tokenizer's chat template, `<think>` and `</think>` by default."""
    template = str(getattr(tokenizer, "chat_template", None))
    known = (tags for tags in (GEMMA4_TAGS, MISTRAL_TAGS) if tags[0] in template)
    return next(known, DEFAULT_TAGS)


def opens_reasoning(prompt: str, tags: tuple[str, str]) -> bool:
    """Whether a rendered prompt ends inside an open reasoning block."""
    return prompt.rstrip().endswith(tags[0])


# One template, or name -> template, with names like "default" and "tool_use".
Templates = str | dict[str, str]

TEMPLATE_FILE = "chat_template.jinja"
ADDITIONAL_TEMPLATES = "additional_chat_templates"  # a folder

# Message fields with reasoning; templates read the first, gpt-oss's template "thinking".
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


def find_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> Templates | None:
    """Reads chat templates from template files, or else the tokenizer config."""
    has_default = (folder / TEMPLATE_FILE).exists()
    found = {"default": read_text(folder, TEMPLATE_FILE)} if has_default else {}
    for file in sorted((folder / ADDITIONAL_TEMPLATES).glob("*.jinja")):
        found[file.stem] = read_text(folder / ADDITIONAL_TEMPLATES, file.name)
    if found:
        return found["default"] if set(found) == {"default"} else found
    listed = tokenizer_config.get("chat_template")
    if isinstance(listed, list):
        return dict(_parse_entry(entry, folder) for entry in listed)
    if not isinstance(listed, str | None):
        raise _invalid_entry(folder, listed)
    return listed


def read_template_file(file: Path) -> str:
    """Reads the user's chat template file; UserError if it is unreadable or invalid."""
    from jinja2 import TemplateSyntaxError  # imported late: only `serve` needs it

    try:
        template = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"the chat template {file} cannot be read: {reason}.") from error
    try:
        _compile(template)
    except TemplateSyntaxError as error:
        reason = str(error.message).rstrip(".")
        raise UserError(
            f"the chat template {file} is not valid Jinja (line {error.lineno}: {reason})."
        ) from error
    return template


def set_chat_template(tokenizer: Any, template: str) -> None:
    tokenizer.chat_template = template
    # `mlx_lm` sets this attribute only when it loads a tokenizer, so it may be out of date.
    if not tokenizer.has_chat_template:
        tokenizer.has_chat_template = True


def choose_template(templates: Templates, has_tools: bool) -> str:
    """Selects a conversation's template; ValueError without a default."""
    if isinstance(templates, str):
        return templates
    if has_tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" not in templates:
        raise ValueError(
            f"expected a chat template named 'default', got {summarize(sorted(templates))}."
        )
    return templates["default"]


def render_template(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """Renders a conversation into a prompt.

    Args:
        messages: messages {"role": …, "content": …}; keys other than `content` are dropped if
            their value is None.
        variables: template variables such as `add_generation_prompt` and `enable_thinking`.

    Raises:
        jinja2.TemplateError: the template is invalid or rejects the conversation.
        ValueError: the text has an unpaired surrogate.
        TypeError: a value is not JSON-serializable.
    """
    given = [{k: v for k, v in m.items() if k == "content" or v is not None} for m in messages]
    given = _plain(list(map(_alias_reasoning, given)))
    text: str = _compile(template).render(messages=given, **_plain(variables))
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the rendered text has an unpaired surrogate") from None
    return text


def _plain(value: Any) -> Any:
    """Copies a value with plain JSON types; a template could call other objects' methods."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if type(value) is dict:
        return {_plain(key): _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return list(map(_plain, value))
    return json.loads(json.dumps(value))


def _alias_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = next((message[name] for name in REASONING_FIELDS if name in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


@lru_cache(maxsize=8)
def _compile(template: str) -> Any:
    return _environment().from_string(template)


@cache
def _environment() -> Any:
    """Jinja environment of all templates; imported late, because it takes 50 ms."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`, which marks the assistant's text for training."""

        tags = {"generation"}  # noqa: RUF012 - declared by Jinja

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

        def _render(self, caller: Callable[[], str]) -> str:
            return caller()

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


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


def _parse_entry(entry: Any, folder: Path) -> tuple[str, str]:
    if isinstance(entry, dict):
        name, template = entry.get("name"), entry.get("template")
        if isinstance(name, str) and isinstance(template, str):
            return name, template
    raise _invalid_entry(folder, entry)


def _invalid_entry(folder: Path, found: Any) -> ModelError:
    expected = 'a string or a list of {"name": …, "template": …}'
    error = invalid_field("chat_template", found, expected, folder / "tokenizer_config.json")
    return ModelError(f"{error}.")
