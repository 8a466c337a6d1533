"""Fallback to `transformers` tokenizers, with the same limits as `Tokenizer`.

`transformers` does not limit the time and memory of chat templates and tokenizers. Therefore a
sandboxed process first renders each conversation and, if the tokenizer has unsafe components,
encodes each text.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoint.config_checks import check_sizes
from ..checkpoint.safe_io import ModelError, check_file
from ..checkpoint.tokenizer_config import read_optional_json
from .chat_template import RENDERER, choose_template
from .sandboxed_encode import SandboxedEncoder, sandboxed_encoder
from .tokenizer_json import TOKENIZER_FILE, raise_library_error, read_tokenizer_json

SUFFIXES = (".json", ".txt", ".jinja", ".model", ".tiktoken")
MAX_OTHER_BYTES = 20_000_000  # limit per file; tokenizer.json has a separate one
ADDED_TOKEN_FILES = ("added_tokens.json", "special_tokens_map.json")


def load_mlx_lm_tokenizer(folder: Path, eos_token_ids: set[int]) -> Any:
    """Loads a tokenizer with `mlx_lm`, which takes seconds, and adds limits."""
    from mlx_lm.utils import load_tokenizer

    encoder = check_tokenizer_files(folder)
    tokenizer = load_tokenizer(folder, eos_token_ids=list(eos_token_ids) or None)
    sandbox_tokenizer(tokenizer, encoder)
    return tokenizer


def check_tokenizer_files(folder: Path) -> SandboxedEncoder | None:
    """Checks the files that `transformers` may read.

    Returns:
        Sandboxed encoder if the tokenizer has unsafe components, else None.

    Raises:
        ModelError: a file is not a regular file, is too large or cannot be loaded.
    """
    names = {file.name for file in folder.iterdir() if file.suffix in SUFFIXES}
    for name in names - {TOKENIZER_FILE}:
        if check_file(folder, name, MAX_OTHER_BYTES) == 0:
            raise ModelError(f"{folder / name} is empty; download it again.")
    for name in ADDED_TOKEN_FILES:
        tokens = read_optional_json(folder, name)
        check_sizes({**tokens, name: tokens}, str(folder))
    if not (folder / TOKENIZER_FILE).exists():
        return None
    return sandboxed_encoder(folder, read_tokenizer_json(folder))


def sandbox_tokenizer(tokenizer: Any, encoder: SandboxedEncoder | None) -> None:
    """Adds time and memory limits to an `mlx_lm` tokenizer.

    If a limit is exceeded, `apply_chat_template` raises ValueError and `encode` raises UserError.

    Args:
        tokenizer: loaded by `mlx_lm`; two methods of the wrapped tokenizer are replaced.
        encoder: from `check_tokenizer_files`.
    """
    inner = tokenizer._tokenizer
    apply, encode = inner.apply_chat_template, inner.encode

    def apply_within_limits(conversation: Any, tools: Any = None, **kwargs: Any) -> Any:
        templates = kwargs.get("chat_template") or inner.chat_template
        if isinstance(templates, str | dict) and conversation:
            text = _render(inner, templates, conversation, {**kwargs, "tools": tools})
            if encoder is not None:
                encoder.encode(text, add_special_tokens=False)
        return apply(conversation, tools=tools, **kwargs)

    def encode_within_limits(text: Any, *args: Any, **kwargs: Any) -> Any:
        if encoder is not None and isinstance(text, str):
            encoder.encode(text, add_special_tokens=False)
        try:
            return encode(text, *args, **kwargs)
        except BaseException as error:
            raise_library_error("the tokenizer cannot encode the text", error)

    inner.apply_chat_template, inner.encode = apply_within_limits, encode_within_limits


def _render(
    tokenizer: Any, templates: str | dict[str, str], chat: Any, variables: Mapping[str, Any]
) -> str:
    """Renders a conversation; values unsupported by JSON become their repr."""
    plain = json.loads(json.dumps({"chat": chat, "variables": variables}, default=repr))
    messages = plain["chat"][0] if isinstance(plain["chat"][0], list) else plain["chat"]
    named = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    template = choose_template(templates, has_tools=variables["tools"] is not None)
    variables = {**named, **plain["variables"]}
    request = {"template": template, "messages": messages, "variables": variables}
    text: str = RENDERER.request(request)["text"]
    return text
