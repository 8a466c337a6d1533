"""Chat template lookup: a checkpoint's templates and their selection."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import short_repr
from ..checkpoint.safe_io import ModelError, read_limited

# One template, or name -> template, such as "default" and "tool_use".
Templates = str | dict[str, str]

TEMPLATE_FILE = "chat_template.jinja"
ADDITIONAL_TEMPLATES = "additional_chat_templates"  # a folder


def find_chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> Templates | None:
    """Reads a checkpoint's chat templates from template files, or else the tokenizer config.

    Args:
        folder: the checkpoint's folder.
        tokenizer_config: its `tokenizer_config.json`.

    Returns:
        The templates; None if there are none.

    Raises:
        ModelError: a file is unreadable, or a template is not a string.
    """
    found = (
        {"default": read_limited(folder, TEMPLATE_FILE)}
        if (folder / TEMPLATE_FILE).exists()
        else {}
    )
    for file in sorted((folder / ADDITIONAL_TEMPLATES).glob("*.jinja")):
        found[file.stem] = read_limited(folder / ADDITIONAL_TEMPLATES, file.name)
    if found:
        return found["default"] if set(found) == {"default"} else found
    listed = tokenizer_config.get("chat_template")
    if isinstance(listed, list):
        return dict(_parse_entry(entry, folder) for entry in listed)
    if not isinstance(listed, str | None):
        raise _invalid_field(folder, listed)
    return listed


def choose_template(templates: Templates, has_tools: bool) -> str:
    """Selects the template of a conversation.

    Raises:
        ValueError: there are several templates without a default.
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


def _parse_entry(entry: Any, folder: Path) -> tuple[str, str]:
    """Name and template of a config entry."""
    if isinstance(entry, dict):
        name, template = entry.get("name"), entry.get("template")
        if isinstance(name, str) and isinstance(template, str):
            return name, template
    raise _invalid_field(folder, entry)


def _invalid_field(folder: Path, found: Any) -> ModelError:
    return ModelError(
        f"{folder / 'tokenizer_config.json'} has the chat_template {short_repr(found)}, expected a "
        'text or a list of {"name": …, "template": …}.'
    )
