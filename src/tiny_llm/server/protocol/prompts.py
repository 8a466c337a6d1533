"""Tokenization and chat template rendering in worker threads."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ...engine.inputs.chat_messages import check_unicode
from ...engine.inputs.chat_template import render_chat
from ...errors import UserError
from ..http.errors import bad_request
from .output_parser import THINK_TAG

T = TypeVar("T")
Message = dict[str, Any]

NUM_TOKENIZER_WORKERS = 2  # tokenizing releases the GIL; template rendering does not
PLACEHOLDER = "next-user-message"  # placeholder for the user's next message in a rendered prompt


@dataclass(frozen=True)
class ChatPrompt:
    """A tokenized conversation.

    Attributes:
        token_ids: the prompt.
        reasoning_open: whether the prompt ends inside an open reasoning block.
        thinking_enabled: whether the completion may start with reasoning; False when continuing
            the final message.
        template_input: source of the prompt; None when continuing the final message.
    """

    token_ids: list[int]
    reasoning_open: bool
    thinking_enabled: bool
    template_input: "ChatTemplateInput | None" = None


@dataclass(frozen=True)
class ChatTemplateInput:
    """Chat template inputs; see `PromptRenderer.render_chat`."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]


class PromptRenderer:
    """Tokenizes text and renders conversations.

    Args:
        tokenizer: the model's tokenizer; shared by the worker threads.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self._workers = ThreadPoolExecutor(NUM_TOKENIZER_WORKERS, thread_name_prefix="prompts")

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *args)

    @property
    def thinking_enabled(self) -> bool:
        """Whether the model has a thinking mode."""
        return bool(getattr(self.tokenizer, "has_thinking", False))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encodes text.

        Raises:
            ApiError: the text has an unpaired surrogate, or the tokenizer rejects it.
        """
        try:
            check_unicode("the prompt", text)
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        except UserError as error:  # the sandboxed encoder raises it too
            raise bad_request(str(error)) from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decodes token ids."""
        return str(self.tokenizer.decode(list(token_ids)))

    def token_bytes(self, token_id: int) -> bytes:
        """A token's UTF-8 bytes, possibly a partial character."""
        if hasattr(self.tokenizer, "token_bytes"):
            return bytes(self.tokenizer.token_bytes(token_id))
        return self.decode([token_id]).encode("utf-8", "replace")

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Tokens as spelled in `tokenizer.json`, such as `Ġa` for " a"."""
        backend = self.tokenizer.backend_tokenizer
        return [backend.id_to_token(token) or "" for token in token_ids]

    def token_text(self, token_id: int) -> str:
        """A token's text, with `�` for partial characters."""
        return self.token_bytes(token_id).decode(errors="replace")

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        add_special_tokens: bool = False,
    ) -> ChatPrompt:
        """Renders and tokenizes a conversation.

        Args:
            messages: chat template messages.
            tools: functions in OpenAI's format, or None.
            variables: other template variables, such as `enable_thinking`.
            add_generation_prompt: whether to open the assistant's turn at the end.
            continue_final_message: whether the model continues the final message, which must be
                from the assistant.
            add_special_tokens: whether to add the tokenizer's special tokens; templates usually
                contain them.

        Raises:
            ApiError: no chat template, or the template failed.
        """
        template_input = ChatTemplateInput(messages, tools, variables)
        text = self._render(template_input, add_generation_prompt and not continue_final_message)
        if continue_final_message:
            text = _truncate_after(text, messages[-1])
            return ChatPrompt(self.encode(text, add_special_tokens), False, False)
        token_ids = self.encode(text, add_special_tokens)
        reasoning_open = text.rstrip().endswith(THINK_TAG)
        return ChatPrompt(token_ids, reasoning_open, self.thinking_enabled, template_input)

    def next_turn_prefix(self, before: ChatTemplateInput, completion: str) -> list[int]:
        """Returns the known prefix of the next turn's prompt, up to the user's next message.

        Not the last prompt plus its completion: templates omit earlier reasoning.

        Args:
            before: the last turn's template input.
            completion: the last turn's completion, without reasoning.

        Raises:
            ApiError: the template failed.
        """
        assistant = {"role": "assistant", "content": completion}
        messages = [*before.messages, assistant, {"role": "user", "content": PLACEHOLDER}]
        text = self._render(ChatTemplateInput(messages, before.tools, before.variables), False)
        prefix, placeholder, _ = text.rpartition(PLACEHOLDER)
        # The last token may merge with the start of the user's message.
        return self.encode(prefix, False)[:-1] if placeholder else []

    def _render(self, given: ChatTemplateInput, add_generation_prompt: bool) -> str:
        try:
            return render_chat(
                self.tokenizer, given.messages, given.tools, given.variables, add_generation_prompt
            )
        except UserError as error:
            raise bad_request(str(error)) from error


def _truncate_after(text: str, message: Message) -> str:
    """Truncates a rendered conversation after the content of its final message."""
    final = message["content"] if message["role"] == "assistant" else ""
    for content in (final, final.strip()):  # templates may strip whitespace
        start = text.rfind(content)
        if content.strip() and start >= 0:
            return text[: start + len(content)]
    raise bad_request(
        "the final message cannot be continued; it must be an assistant message with text.",
        "messages",
    )


def check_token_ids(engine_info: Any, tokens: list[int]) -> None:
    """Rejects token ids outside the vocabulary.

    Raises:
        ApiError: 400.
    """
    for token in tokens:
        if token >= engine_info.vocab_size:
            raise bad_request(
                f"token {token} is out of range; ids are 0 to {engine_info.vocab_size - 1}."
            )
