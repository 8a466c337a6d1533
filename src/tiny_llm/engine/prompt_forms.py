"""The forms of a prompt: a text, token ids, or the messages of a chat."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from ..errors import UserError, shortened
from .checks import as_plain

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
Prompts = Prompt | Sequence[Prompt]

FORMS = 'a text, token ids or the messages of a chat ({"role": …, "content": …})'


def as_list(prompts: Any) -> list[Any]:
    """A list of prompts, from one prompt or several.

    Raises:
        UserError: the argument is neither.
    """
    prompts = as_plain(prompts)
    if isinstance(prompts, str) or is_token_ids(prompts) or _is_chat(prompts):
        return [prompts]
    if _is_sequence(prompts):
        several = [as_plain(prompt) for prompt in prompts]
        if all(map(_is_prompt, several)):
            return several
    raise UserError(f"{shortened(prompts)} is no prompt; give {FORMS}, or a list of such.")


def encode(tokenizer: Any, prompt: Prompt, enable_thinking: bool = False) -> list[int]:
    """A prompt's token ids. A text is encoded as it stands, a chat through the chat template.

    Returns:
        The ids; none for an empty prompt, which the scheduler refuses.

    Raises:
        UserError: the argument is not a prompt; a token is not a number; a message of a chat has no
            role or no text; there is no chat template, or it refuses the chat.
    """
    if not isinstance(prompt, str) and not _is_sequence(prompt):
        raise UserError(f"{shortened(prompt)} is no prompt; give {FORMS}.")
    if not prompt:
        return []
    if isinstance(prompt, str):
        _check_characters("the prompt", prompt)
        return list(tokenizer.encode(prompt))
    if _is_chat(prompt):
        return _encode_chat(tokenizer, prompt, enable_thinking)  # type: ignore[arg-type]
    for token in prompt:
        if not isinstance(token, Integral):
            raise UserError(f"the prompt has the token {shortened(token)}; ids are whole numbers.")
    return [int(token) for token in prompt]  # type: ignore[arg-type]


def _encode_chat(tokenizer: Any, messages: Sequence[Message], enable_thinking: bool) -> list[int]:
    if not getattr(tokenizer, "has_chat_template", False):
        raise UserError("the model has no chat template; give a text or token ids.")
    for index, message in enumerate(messages):
        _check_message(f"message {index} of the chat", message)
    try:
        return list(
            tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, enable_thinking=enable_thinking
            )
        )
    except Exception as error:  # a template is a program, which can fail in any way
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(f"the chat template refuses the chat: {reason}.") from error


def _check_message(what: str, message: Any) -> None:
    """Refuses a message without role or text, which many templates would drop silently."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UserError(
            f'{what} is {shortened(message)}; give {{"role": …, "content": …}}, both texts.'
        )
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        return  # for example after a tool call
    if not isinstance(content, str):
        raise UserError(
            f"{what} has the content {shortened(content)}; give one text (several parts joined), "
            "which only an assistant's message can do without."
        )
    _check_characters(what, content)


def _check_characters(what: str, text: str) -> None:
    """Refuses half of a surrogate pair, which JSON that was cut can contain."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise UserError(f"{what} has {half!r}, half of a character; give whole ones.") from error


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
