"""Conversion of prompts (text, token ids or chat messages) to token ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ...errors import UserError, array_to_list, short_repr
from .chat_template import check_messages, render_chat
from .limits import encode_text

Message = Mapping[str, Any]
# A mapping is vLLM's `TextPrompt` or `TokensPrompt`.
Prompt = str | Sequence[int] | Sequence[Message] | Mapping[str, Any]
Prompts = Prompt | Sequence[Prompt]

PROMPT_KEYS = ("prompt_token_ids", "prompt")  # of vLLM's prompts, in order of precedence
PROMPT_TYPES = 'text, token ids or chat messages ({"role": …, "content": …})'


@dataclass(frozen=True)
class ChatOptions:
    """Chat template inputs besides the messages."""

    enable_thinking: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] | None = None

    @property
    def variables(self) -> dict[str, Any]:
        return {"enable_thinking": self.enable_thinking, **(self.template_kwargs or {})}

    @property
    def thinking_enabled(self) -> bool:
        return bool(self.variables["enable_thinking"])


def normalize_prompts(prompts: Any) -> list[Any]:
    """Wraps a single prompt in a list; checks the type of each prompt."""
    prompts = unwrap_prompt(prompts)
    if isinstance(prompts, str) or is_token_ids(prompts):
        return [prompts]
    if _is_sequence(prompts):
        listed = list(map(unwrap_prompt, prompts))
        if is_chat(listed):
            return [prompts]
        if all(map(_is_prompt, listed)):
            return listed
    raise UserError(
        f"a prompt must be {PROMPT_TYPES}, or a list of prompts, got {short_repr(prompts)}."
    )


def unwrap_prompt(prompt: Any) -> Any:
    """Returns the text or token ids of vLLM's prompts, and other prompts as they are."""
    if isinstance(prompt, Mapping) and (keys := prompt.keys()) and keys <= set(PROMPT_KEYS):
        prompt = next(prompt[key] for key in PROMPT_KEYS if key in prompt)
    return array_to_list(prompt)


def encode_prompt(tokenizer: Any, prompt: Any, chat: ChatOptions, max_tokens: int) -> list[int]:
    """Encodes a prompt: text verbatim, messages with the chat template.

    Args:
        max_tokens: the model's context length; much longer text is rejected before encoding.

    Returns:
        Token ids; empty for an empty prompt, which the scheduler rejects.
    """
    prompt = unwrap_prompt(prompt)
    if not isinstance(prompt, str) and not _is_sequence(prompt):
        raise UserError(f"a prompt must be {PROMPT_TYPES}, got {short_repr(prompt)}.")
    if not prompt:
        return []
    if isinstance(prompt, str):
        return encode_text(tokenizer, "the prompt", prompt, max_tokens)
    if is_chat(prompt):
        text = render_chat(tokenizer, check_messages(prompt), chat.tools, chat.variables)
        return encode_text(tokenizer, "the chat", text, max_tokens, add_special_tokens=False)
    for index, token in enumerate(prompt):
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise UserError(
                f"prompt[{index}] must be an integer token id, got {short_repr(token)}."
            )
    return [int(token) for token in prompt]


def is_token_ids(prompt: Any) -> bool:
    return _is_sequence(prompt) and bool(prompt) and isinstance(prompt[0], Integral)


def is_chat(prompt: Any) -> bool:
    return _is_sequence(prompt) and bool(prompt) and isinstance(prompt[0], Mapping)


def _is_prompt(prompt: Any) -> bool:
    """Whether a value is a prompt or an empty sequence, which is rejected later."""
    is_empty = _is_sequence(prompt) and not prompt
    return isinstance(prompt, str) or is_empty or is_token_ids(prompt) or is_chat(prompt)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
