"""Chat template lookup, selection, replacement and rendering.

A chat template is an untrusted program. Jinja's sandbox blocks access to files and Python
internals, but a template can still loop endlessly or exhaust memory, e.g. with a few nested
`{% for i in range(99999) %}`. Templates are therefore rendered by a sandboxed process.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError, short_repr, summarize
from ..checkpoint.safe_io import ModelError, read_limited
from .sandbox import SandboxedProcess

# One template, or name -> template, with names like "default" and "tool_use".
Templates = str | dict[str, str]

TEMPLATE_FILE = "chat_template.jinja"
ADDITIONAL_TEMPLATES = "additional_chat_templates"  # a folder
MAX_TEMPLATES = 100

# Renders chat templates for all tokenizers, with `chat_template_handler._handle`.
RENDERER = SandboxedProcess(
    Path(__file__).with_name("chat_template_handler.py"),
    arguments=[],
    seconds=2.0,  # per conversation
    max_bytes=2**25,  # as JSON
    max_memory=2**29,
)


def find_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> Templates | None:
    """Reads chat templates from template files, or else the tokenizer config.

    Raises:
        ModelError: a file is unreadable, or a template is not a string.
    """
    has_default = (folder / TEMPLATE_FILE).exists()
    found = {"default": read_limited(folder, TEMPLATE_FILE)} if has_default else {}
    files = sorted((folder / ADDITIONAL_TEMPLATES).glob("*.jinja"))
    listed = tokenizer_config.get("chat_template")
    number = max(len(files), len(listed) if isinstance(listed, list) else 0)
    if number > MAX_TEMPLATES:
        raise ModelError(
            f"{folder} has {number:,} chat templates, expected at most {MAX_TEMPLATES}."
        )
    for file in files:
        found[file.stem] = read_limited(folder / ADDITIONAL_TEMPLATES, file.name)
    if found:
        return found["default"] if set(found) == {"default"} else found
    if isinstance(listed, list):
        return dict(_parse_entry(entry, folder) for entry in listed)
    if not isinstance(listed, str | None):
        raise _invalid_field(folder, listed)
    return listed


def read_template_file(file: Path) -> str:
    """Reads a chat template file specified by the user.

    Raises:
        UserError: the file is unreadable or not a valid template.
    """
    from jinja2 import Environment, TemplateSyntaxError  # imported late: only `serve` needs it

    try:
        template = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UserError(f"the chat template {file} cannot be read: {reason}.") from error
    try:
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except TemplateSyntaxError as error:
        reason = str(error.message).rstrip(".")
        raise UserError(
            f"the chat template {file} is not valid Jinja (line {error.lineno}: {reason})."
        ) from error
    return template


def set_chat_template(tokenizer: Any, template: str) -> None:
    """Replaces a tokenizer's chat template."""
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


def _parse_entry(entry: Any, folder: Path) -> tuple[str, str]:
    if isinstance(entry, dict):
        name, template = entry.get("name"), entry.get("template")
        if isinstance(name, str) and isinstance(template, str):
            return name, template
    raise _invalid_field(folder, entry)


def _invalid_field(folder: Path, found: Any) -> ModelError:
    return ModelError(
        f"{folder / 'tokenizer_config.json'} has chat_template {short_repr(found)}, expected a "
        'string or a list of {"name": …, "template": …}.'
    )
