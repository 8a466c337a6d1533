"""What counts as a prompt: a text, token ids, or the messages of a chat."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from ..errors import UserError

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
Prompts = Prompt | Sequence[Prompt]


def as_list(prompts: Any) -> list[Any]:
    """One prompt or several, as a list of them.

    Raises:
        UserError: neither.
    """
    if isinstance(prompts, str) or is_token_ids(prompts) or _is_chat(prompts):
        return [prompts]
    if isinstance(prompts, Sequence) and all(map(_is_prompt, prompts)):
        return list(prompts)
    raise UserError(
        f"{_shortened(prompts)} is no prompt; give a text, token ids, the messages of a chat "
        '({"role": …, "content": …}), or a list of such.'
    )


def encode(tokenizer: Any, prompt: Prompt, enable_thinking: bool = False) -> list[int]:
    """A prompt's token ids. A text is encoded as it stands, a chat through the chat template.

    Raises:
        UserError: the prompt is empty, a token is no number, or there is no chat template.
    """
    ids: list[int]
    if not len(prompt):
        raise UserError("the prompt is empty; give at least one token.")
    if isinstance(prompt, str):
        ids = list(tokenizer.encode(prompt))
    elif _is_chat(prompt):
        if not getattr(tokenizer, "has_chat_template", False):
            raise UserError("the model has no chat template; give a text or token ids.")
        ids = list(
            tokenizer.apply_chat_template(
                list(prompt), add_generation_prompt=True, enable_thinking=enable_thinking
            )
        )
    else:
        wrong = [token for token in prompt if not isinstance(token, Integral)]
        if wrong:
            raise UserError(f"the prompt has the token {wrong[0]!r}; ids are whole numbers.")
        ids = [int(token) for token in prompt]  # type: ignore[arg-type]
    if not ids:
        raise UserError("the prompt is empty; give at least one token.")
    return ids


def is_token_ids(prompt: Any) -> bool:
    """Whether a prompt is token ids."""
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Integral)


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def _is_prompt(prompt: Any) -> bool:
    """Whether it is one prompt; an empty one is refused later, without stopping the others."""
    is_empty = isinstance(prompt, Sequence) and not prompt
    return isinstance(prompt, str) or is_empty or is_token_ids(prompt) or _is_chat(prompt)


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
