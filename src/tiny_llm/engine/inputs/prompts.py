"""The forms of a prompt: a text, token ids, or the messages of a chat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from ...errors import UserError, short_repr
from .chat_messages import check_unicode, normalize_messages, normalize_tools
from .length_check import check_length
from .validation import array_to_list

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
Prompts = Prompt | Sequence[Prompt]

PROMPT_TYPES = 'a text, token ids or the messages of a chat ({"role": …, "content": …})'

# What callers decide with arguments of their own, or what is none of a template's business.
RESERVED_TEMPLATE_VARIABLES = {
    "add_generation_prompt",
    "chat_template",
    "conversation",
    "messages",
    "tokenize",
    "tools",
}


@dataclass(frozen=True)
class ChatOptions:
    """How the messages of a chat become text.

    Attributes:
        enable_thinking: whether the model may think before it answers, if it can.
        tools: what the model may call; None for nothing.
        template_kwargs: more variables of the chat template.
    """

    enable_thinking: bool = False
    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] | None = None

    @property
    def variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        return {"enable_thinking": self.enable_thinking, **(self.template_kwargs or {})}

    @property
    def thinking_enabled(self) -> bool:
        """Whether the template is told to let the model think."""
        return bool(self.variables["enable_thinking"])


def normalize_prompts(prompts: Any) -> list[Any]:
    """A list of prompts, from one prompt or several.

    Raises:
        UserError: the argument is neither.
    """
    prompts = array_to_list(prompts)
    if isinstance(prompts, str) or is_token_ids(prompts) or _is_chat(prompts):
        return [prompts]
    if _is_sequence(prompts):
        several = [array_to_list(prompt) for prompt in prompts]
        if all(map(_is_prompt, several)):
            return several
    raise UserError(f"{short_repr(prompts)} is no prompt; give {PROMPT_TYPES}, or a list of such.")


def encode_prompt(
    tokenizer: Any, prompt: Prompt, chat: ChatOptions = ChatOptions(), max_tokens: int | None = None
) -> list[int]:
    """A prompt's token ids. A text is encoded as it stands, a chat through the chat template.

    Args:
        tokenizer: of the model.
        prompt: in any form.
        chat: how the messages of a chat become text.
        max_tokens: tokens of the model's context, which a very long text is measured by before it
            is encoded; None for any number.

    Returns:
        The ids; none for an empty prompt, which the scheduler refuses.

    Raises:
        UserError: the argument is not a prompt; a token is not a number; a message of a chat has no
            role or no text; there is no chat template, it refuses the chat, or it has no place for
            tools.
    """
    if not isinstance(prompt, str) and not _is_sequence(prompt):
        raise UserError(f"{short_repr(prompt)} is no prompt; give {PROMPT_TYPES}.")
    if not prompt:
        return []
    if isinstance(prompt, str):
        check_unicode("the prompt", prompt)
        if max_tokens is not None:
            check_length(tokenizer, "the prompt", prompt, max_tokens)
        return list(tokenizer.encode(prompt))
    if _is_chat(prompt):
        return _encode_chat(tokenizer, prompt, chat, max_tokens)  # type: ignore[arg-type]
    for token in prompt:
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise UserError(f"the prompt has the token {short_repr(token)}; ids are whole numbers.")
    return [int(token) for token in prompt]  # type: ignore[arg-type]


def _encode_chat(
    tokenizer: Any, messages: Sequence[Message], chat: ChatOptions, max_tokens: int | None
) -> list[int]:
    if not getattr(tokenizer, "has_chat_template", False):
        raise UserError("the model has no chat template; give a text or token ids.")
    checked = normalize_messages(messages)
    tools = normalize_tools(chat.tools)
    if tools and "tools" not in str(tokenizer.chat_template):
        raise UserError("the model's chat template has no place for tools; leave tools out.")
    variables = chat.variables
    for name in variables.keys() & RESERVED_TEMPLATE_VARIABLES:
        raise UserError(f"chat_template_kwargs has '{name}', which cannot be set there.")
    try:
        text = tokenizer.apply_chat_template(
            checked, tools=tools, tokenize=False, add_generation_prompt=True, **variables
        )
    except Exception as error:  # a template is a program, which can fail in any way
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(f"the chat template refuses the chat: {reason}.") from error
    if max_tokens is not None:
        check_length(tokenizer, "the chat", text, max_tokens)
    return list(tokenizer.encode(text, add_special_tokens=False))


def is_token_ids(prompt: Any) -> bool:
    """Whether a prompt is token ids."""
    return _is_sequence(prompt) and bool(prompt) and isinstance(prompt[0], Integral)


def _is_chat(prompt: Any) -> bool:
    return _is_sequence(prompt) and bool(prompt) and isinstance(prompt[0], Mapping)


def _is_prompt(prompt: Any) -> bool:
    """Whether it is one prompt. An empty one is: it is refused later, and the others go on."""
    is_empty = _is_sequence(prompt) and not prompt
    return isinstance(prompt, str) or is_empty or is_token_ids(prompt) or _is_chat(prompt)


def _is_sequence(value: Any) -> bool:
    """Whether it is a sequence, but not a text, and not bytes, whose elements are numbers."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
