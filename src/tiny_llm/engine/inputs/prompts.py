"""Conversion of prompts (text, token ids or chat messages) to token ids.

Tokenization takes a second or more per megabyte. Text that looks too long for the model's context
is tokenized chunk by chunk, until it certainly exceeds the limit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ...errors import UserError, array_to_list, short_repr
from .chat_template import check_unicode, render_chat

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
Prompts = Prompt | Sequence[Prompt]

PROMPT_TYPES = 'text, token ids or chat messages ({"role": …, "content": …})'

CHUNK_CHARS = 2**16
# Text of up to this many characters per token of the context length is not checked: English text
# averages only 4 to 5 characters per token.
UNCHECKED_CHARS_PER_TOKEN = 8
# Tokens allowed before rejection, as a multiple of the context length. The count is not exact,
# because splitting text into chunks changes the tokens at the boundaries.
MARGIN = 2


@dataclass(frozen=True)
class ChatOptions:
    """Chat template inputs besides the messages."""

    enable_thinking: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """Variables to pass to the chat template, in addition to messages and tools."""
        return {"enable_thinking": self.enable_thinking, **(self.template_kwargs or {})}

    @property
    def thinking_enabled(self) -> bool:
        """Whether the chat template's variables enable thinking."""
        return bool(self.variables["enable_thinking"])


def normalize_prompts(prompts: Any) -> list[Any]:
    """Wraps a single prompt in a list; checks the type of each prompt.

    Raises:
        UserError: the argument is neither a prompt nor a list of prompts.
    """
    prompts = array_to_list(prompts)
    if isinstance(prompts, str) or is_token_ids(prompts) or _is_chat(prompts):
        return [prompts]
    if _is_sequence(prompts):
        listed = [array_to_list(prompt) for prompt in prompts]
        if all(map(_is_prompt, listed)):
            return listed
    raise UserError(
        f"a prompt must be {PROMPT_TYPES}, or a list of prompts, got {short_repr(prompts)}."
    )


def encode_prompt(
    tokenizer: Any, prompt: Prompt, chat: ChatOptions = ChatOptions(), max_tokens: int | None = None
) -> list[int]:
    """Encodes a prompt: text verbatim, messages with the chat template.

    Args:
        max_tokens: the model's context length, for rejecting over-long text before encoding; None
            skips the check.

    Returns:
        Token ids; empty for an empty prompt, which the scheduler rejects.

    Raises:
        UserError: the prompt has an invalid type or a non-integer token id; see also `render_chat`.
    """
    if not isinstance(prompt, str) and not _is_sequence(prompt):
        raise UserError(f"a prompt must be {PROMPT_TYPES}, got {short_repr(prompt)}.")
    if not prompt:
        return []
    if isinstance(prompt, str):
        what, text = "the prompt", prompt
        check_unicode(what, text)
    elif _is_chat(prompt):
        what, text = "the chat", render_chat(tokenizer, prompt, chat.tools, chat.variables)
    else:
        for index, token in enumerate(prompt):
            if not isinstance(token, Integral) or isinstance(token, bool):
                raise UserError(
                    f"prompt[{index}] must be an integer token id, got {short_repr(token)}."
                )
        return [int(token) for token in prompt]  # type: ignore[arg-type]
    if max_tokens is not None:
        check_length(tokenizer, what, text, max_tokens)
    return list(tokenizer.encode(text, add_special_tokens=isinstance(prompt, str)))


def is_token_ids(prompt: Any) -> bool:
    """Whether a prompt is a list of token ids."""
    return _is_sequence(prompt) and bool(prompt) and isinstance(prompt[0], Integral)


def _is_chat(prompt: Any) -> bool:
    return _is_sequence(prompt) and bool(prompt) and isinstance(prompt[0], Mapping)


def _is_prompt(prompt: Any) -> bool:
    """Whether a value is a single prompt, possibly an empty sequence, which is rejected later."""
    is_empty = _is_sequence(prompt) and not prompt
    return isinstance(prompt, str) or is_empty or is_token_ids(prompt) or _is_chat(prompt)


def _is_sequence(value: Any) -> bool:
    """Whether a value is a sequence other than a string or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def check_length(tokenizer: Any, what: str, text: str, max_tokens: int) -> None:
    """Rejects text with far more tokens than the model's context length.

    Args:
        tokenizer: the model's tokenizer.
        what: subject of the error message, for example "the prompt".
        text: valid Unicode.
        max_tokens: the model's context length.

    Raises:
        UserError: the text is too long.
    """
    if len(text) <= max(CHUNK_CHARS, UNCHECKED_CHARS_PER_TOKEN * max_tokens):
        return
    num_tokens = 0
    for start in range(0, len(text), CHUNK_CHARS):
        chunk = text[start : start + CHUNK_CHARS]
        num_tokens += len(tokenizer.encode(chunk, add_special_tokens=False))
        if num_tokens > MARGIN * max_tokens:
            raise UserError(
                f"{what} is too long: the first {start + len(chunk):,} of its {len(text):,} "
                f"characters are about {num_tokens:,} tokens, but the model's context length is "
                f"{max_tokens:,} tokens, including the output."
            )
