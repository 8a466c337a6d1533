"""Fallback to tokenizers of `transformers`, within the same limits as `Tokenizer`.

`transformers` limits neither chat templates nor regular expressions. So each conversation is first
rendered, and each text with an unknown regular expression first encoded, in a sandboxed process.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from ..checkpoint.safe_io import resolve_file
from .chat_template_files import choose_template
from .chat_template_sandbox import render_sandboxed
from .sandboxed_encode import SandboxedEncoder, find_unknown_regex


def load_mlx_lm_tokenizer(folder: Path, eos_token_ids: set[int]) -> Any:
    """Loads a folder's tokenizer by `mlx_lm`, with limits. Takes seconds.

    Args:
        folder: checkpoint folder with validated settings.
        eos_token_ids: ids of the EOS tokens.
    """
    from mlx_lm.utils import load_tokenizer

    tokenizer = load_tokenizer(folder, eos_token_ids=list(eos_token_ids) or None)
    sandbox_tokenizer(tokenizer, folder)
    return tokenizer


def sandbox_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Adds time and memory limits to a tokenizer of `mlx_lm`.

    Beyond the limits, `apply_chat_template` raises ValueError and `encode` UserError.

    Args:
        tokenizer: as loaded by `mlx_lm`; two methods of the wrapped object are replaced.
        folder: the checkpoint's folder.
    """
    inner = tokenizer._tokenizer
    apply, encode = inner.apply_chat_template, inner.encode
    encoder = _encoder(folder)

    def apply_within_bounds(conversation: Any, tools: Any = None, **kwargs: Any) -> Any:
        templates = kwargs.get("chat_template") or inner.chat_template
        if isinstance(templates, str | dict) and conversation:
            text = _render(inner, templates, conversation, {**kwargs, "tools": tools})
            if encoder is not None:
                encoder.encode(text, add_special_tokens=False)
        return apply(conversation, tools=tools, **kwargs)

    def encode_within_bounds(text: Any, *kwargs: Any, **named: Any) -> Any:
        if encoder is not None and isinstance(text, str):
            encoder.encode(text, add_special_tokens=False)
        return encode(text, *kwargs, **named)

    inner.apply_chat_template, inner.encode = apply_within_bounds, encode_within_bounds


def _encoder(folder: Path) -> SandboxedEncoder | None:
    """Sandboxed encoder of a folder's tokenizer; None if all its regular expressions are known."""
    if not (folder / "tokenizer.json").exists():
        return None
    file = resolve_file(folder, "tokenizer.json")
    expression = find_unknown_regex(tokenizers.Tokenizer.from_file(str(file)))
    return None if expression is None else SandboxedEncoder(file, expression)


def _render(
    tokenizer: Any, templates: str | dict[str, str], chat: Any, variables: Mapping[str, Any]
) -> str:
    """Renders a conversation; values that are not plain data are replaced by their repr."""
    plain = json.loads(json.dumps({"chat": chat, "variables": variables}, default=repr))
    messages = plain["chat"][0] if isinstance(plain["chat"][0], list) else plain["chat"]
    named = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    template = choose_template(templates, has_tools=variables["tools"] is not None)
    return render_sandboxed(template, messages, **{**named, **plain["variables"]})
