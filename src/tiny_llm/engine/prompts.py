"""What counts as a prompt: a text, token ids, or the messages of a chat."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from ..errors import UserError
from .sampling_params import as_plain

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
Prompts = Prompt | Sequence[Prompt]

FORMS = 'a text, token ids or the messages of a chat ({"role": …, "content": …})'


def as_list(prompts: Any) -> list[Any]:
    """One prompt or several, as a list of them.

    Raises:
        UserError: neither.
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

    Raises:
        UserError: the prompt is none, or empty; a token is no number; a message of a chat has no
            role or no text; there is no chat template, or it refuses the chat.
    """
    ids: list[int]
    if not isinstance(prompt, str) and not _is_sequence(prompt):
        raise UserError(f"{shortened(prompt)} is no prompt; give {FORMS}.")
    if not prompt:
        raise UserError("the prompt is empty; give at least one token.")
    if isinstance(prompt, str):
        _check_characters("the prompt", prompt)
        ids = list(tokenizer.encode(prompt))
    elif _is_chat(prompt):
        ids = _encode_chat(tokenizer, prompt, enable_thinking)  # type: ignore[arg-type]
    else:
        wrong = [token for token in prompt if not isinstance(token, Integral)]
        if wrong:
            raise UserError(
                f"the prompt has the token {shortened(wrong[0])}; ids are whole numbers."
            )
        ids = [int(token) for token in prompt]  # type: ignore[arg-type]
    if not ids:
        raise UserError("the prompt is empty; give at least one token.")
    return ids


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
    """A role and a text. Templates leave out without a word what they do not expect."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UserError(
            f'{what} is {shortened(message)}; give {{"role": …, "content": …}}, both texts.'
        )
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        return  # it called a tool, for example
    if not isinstance(content, str):
        raise UserError(
            f"{what} has the content {shortened(content)}; give one text (several parts joined), "
            "which only an assistant's message can do without."
        )
    _check_characters(what, content)


def _check_characters(what: str, text: str) -> None:
    """Half of a surrogate pair, as in a JSON text that was cut, is no character."""
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
    """Whether it is one prompt; an empty one is refused later, without stopping the others."""
    is_empty = _is_sequence(prompt) and not prompt
    return isinstance(prompt, str) or is_empty or is_token_ids(prompt) or _is_chat(prompt)


def _is_sequence(value: Any) -> bool:
    """Of anything but characters or bytes, which are no token ids though they are numbers."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def shortened(value: Any) -> str:
    """What was given, on one line, for a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
