"""Tokenization and chat template rendering in worker threads."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ...engine.inputs.chat_template import render_chat
from ...engine.inputs.limits import PromptTooLongError, encode_text
from ...engine.inputs.sampling_params import StructuredOutputs, ToolCalls
from ...engine.outputs.output_parser import OutputParser, make_output_parser
from ...engine.tool_calls.format import ToolCallOptions
from ...engine.tool_calls.harmony import HarmonyFormat
from ...engine.tool_calls.registry import AUTO, find_format
from ...errors import short_repr
from ...models.tokenizer.chat_template import opens_reasoning, think_tags
from ...models.tokenizer.tokenizer import TRANSFORMERS_ONLY_ARGUMENTS
from ..http.errors import ApiError, bad_request, context_length_error, user_errors_as_400
from .request_fields import MAX_NAME_CHARS, ignore_fields, warn_once

T = TypeVar("T")
Message = dict[str, Any]

# Tokenization releases the GIL, so that two workers run in parallel. Template rendering holds it.
NUM_TOKENIZER_WORKERS = 2
THINKING_VARIABLE = "enable_thinking"  # accepted whether or not the template reads it
PLACEHOLDER = "next-user-message"  # stands for the user's next message in a rendered prompt
# Appended to a message that is to be continued. A template that trims messages removes the space.
END_MARKER = "<end-of-final-message> "


@dataclass(frozen=True)
class ChatPrompt:
    token_ids: list[int]
    reasoning_open: bool  # whether the prompt ends inside an open reasoning block
    thinking_enabled: bool  # whether the completion may start with reasoning
    template_input: "ChatTemplateInput | None" = None  # None when continuing the final message


@dataclass(frozen=True)
class ChatTemplateInput:
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]


class PromptRenderer:
    """Tokenizes text and renders conversations; see `find_format` for `tool_call_parser`."""

    max_tokens: int  # maximum length of prompt plus completion; set once the engine has loaded

    def __init__(self, tokenizer: Any, tool_call_parser: str = AUTO):
        self.tokenizer = tokenizer
        template = getattr(tokenizer, "chat_template", None)
        # Names that the template's source contains; it cannot read other variables.
        self._template_names = set(re.findall(r"\w+", str(template))) - TRANSFORMERS_ONLY_ARGUMENTS
        self._tool_call_format = find_format(tool_call_parser, template)
        self._think_tags = think_tags(tokenizer)
        self._workers = ThreadPoolExecutor(NUM_TOKENIZER_WORKERS, thread_name_prefix="prompts")

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *args)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        arguments = self.tokenizer, "the prompt", text, self.max_tokens, add_special_tokens
        with user_errors_as_400():
            try:
                return encode_text(*arguments)
            except PromptTooLongError as error:
                note, num_tokens = " (estimated)", error.num_tokens
                raise context_length_error(num_tokens, self.max_tokens, note) from error

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids)))

    def token_bytes(self, token_id: int) -> bytes:
        """Returns a token's UTF-8 bytes, which may end within a character."""
        if hasattr(self.tokenizer, "token_bytes"):
            return bytes(self.tokenizer.token_bytes(token_id))
        return self.decode([token_id]).encode("utf-8", "replace")

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Returns tokens as spelled in `tokenizer.json`, e.g. `Ġa` for " a"."""
        backend = self.tokenizer.backend_tokenizer
        return [backend.id_to_token(token) or "" for token in token_ids]

    def token_text(self, token_id: int) -> str:
        """Returns a token's text, with `�` for partial characters."""
        return self.token_bytes(token_id).decode(errors="replace")

    def used_template_kwargs(self, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns the variables that the template reads; names the others as ignored."""
        given = {name: value for name, value in (variables or {}).items() if value is not None}
        thinking = given.get(THINKING_VARIABLE)
        if not isinstance(thinking, bool | None):
            path = f"chat_template_kwargs.{THINKING_VARIABLE}"
            raise bad_request(f"{path} must be true or false, got {short_repr(thinking)}.", path)
        unused = [name for name in given if name not in self._template_names]
        ignore_fields(f"chat_template_kwargs.{name[:MAX_NAME_CHARS]}" for name in unused)
        return {name: value for name, value in given.items() if name in self._template_names}

    def encode_chat(
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
            tools: functions in OpenAI's format, or None.
            variables: other template variables, such as `enable_thinking`; None values are ignored.
            add_special_tokens: whether to add special tokens, which templates usually contain.
        """
        tools = None if tools is None else [_without_strict(tool) for tool in tools]
        given = {name: value for name, value in variables.items() if value is not None}
        if continue_final_message:
            messages = [*messages[:-1], _with_marker(messages[-1])]
        template_input = ChatTemplateInput(messages, tools, given)
        text = self._render(template_input, add_generation_prompt and not continue_final_message)
        if continue_final_message:
            text = _truncate_at_marker(text)
            return ChatPrompt(self.encode(text, add_special_tokens), False, False)
        token_ids = self.encode(text, add_special_tokens)
        reasoning_open = opens_reasoning(text, self._think_tags)
        has_thinking = bool(getattr(self.tokenizer, "has_thinking", False))
        always_thinks = isinstance(self._tool_call_format, HarmonyFormat)
        if given.get(THINKING_VARIABLE) and not (has_thinking or always_thinks):
            warn_once("the model has no thinking mode: options that enable thinking are ignored")
        return ChatPrompt(token_ids, reasoning_open, has_thinking, template_input)

    def output_parser(
        self,
        prompt: ChatPrompt,
        tools: Sequence[Mapping[str, Any]],
        constraint: StructuredOutputs | ToolCalls | None,
        is_stream: bool,
    ) -> OutputParser:
        has_structured_content = isinstance(constraint, StructuredOutputs) or (
            constraint is not None and constraint.response_constraint is not None
        )
        options = ToolCallOptions(self._tool_call_format, tools, is_stream, has_structured_content)
        return make_output_parser(
            self._tool_call_format,
            prompt.thinking_enabled,
            prompt.reasoning_open,
            options if tools else None,
            starts_message=prompt.template_input is not None,
            think_tags=self._think_tags,
        )

    def next_turn_prefix(self, before: ChatTemplateInput, completion: str) -> list[int]:
        """Returns the next turn's prompt, up to the user's next message.

        This is not the last prompt plus its completion, because templates omit earlier reasoning.
        `completion` must not contain any.
        """
        assistant = {"role": "assistant", "content": completion}
        messages = [*before.messages, assistant, {"role": "user", "content": PLACEHOLDER}]
        text = self._render(ChatTemplateInput(messages, before.tools, before.variables), False)
        prefix, placeholder, _ = text.rpartition(PLACEHOLDER)
        # The last token may merge with the start of the user's message.
        return self.encode(prefix, False)[:-1] if placeholder else []

    def _render(self, given: ChatTemplateInput, add_generation_prompt: bool) -> str:
        with user_errors_as_400():
            return render_chat(
                self.tokenizer, given.messages, given.tools, given.variables, add_generation_prompt
            )


def _without_strict(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Removes a function's `strict`, which is for the grammar, not the model."""
    function = {key: value for key, value in tool["function"].items() if key != "strict"}
    return {**tool, "function": function}


def _with_marker(message: Message) -> Message:
    if message["role"] != "assistant" or not message["content"].strip():
        raise _not_continuable()
    return {**message, "content": message["content"] + END_MARKER}


def _truncate_at_marker(text: str) -> str:
    before, marker, after = text.rpartition(END_MARKER.rstrip())
    if not marker:  # the template drops the message
        raise _not_continuable()
    return before if after.startswith(" ") else before.rstrip()


def _not_continuable() -> ApiError:
    return bad_request(
        "the final message can be continued only if it is an assistant message with text.",
        "messages",
    )
