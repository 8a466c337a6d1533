"""From texts and conversations to token ids, in worker threads.

A conversation goes through the model's chat template. If it has tools and the template does not
read any, they are written into the system's message as Qwen3's template writes them.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import UserError
from ..http.errors import bad_request
from .output_parser import THINK_TAG, TOOL_CALL_END_TAG, TOOL_CALL_TAG

T = TypeVar("T")
Message = dict[str, Any]

NUM_TOKENIZER_WORKERS = 2  # tokenizing lets other threads run; templates do not
PLACEHOLDER = "what-the-user-will-say"  # in the place of words that are not known yet

TOOLS_TEMPLATE = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation that the model continues.

    Attributes:
        token_ids: the prompt.
        reasoning_open: whether it ends inside the model's thoughts.
        thinking_enabled: whether the answer may begin with thoughts; not if it was begun already.
        template_input: what it was made of; None if it continues a turn that was begun.
    """

    token_ids: list[int]
    reasoning_open: bool
    thinking_enabled: bool
    template_input: "ChatTemplateInput | None" = None


@dataclass(frozen=True)
class ChatTemplateInput:
    """What a prompt is made of; see `PromptRenderer.chat`."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]


class PromptRenderer:
    """Makes prompts for one tokenizer.

    Args:
        tokenizer: of the model; read by several threads.
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
        """A text's tokens.

        Raises:
            ApiError: the text has half of a character, as JSON can; or the tokenizer refuses it.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = ascii(text[error.start])
            raise bad_request(
                f"The prompt has {half}, half of a character; give whole ones."
            ) from None
        try:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        except UserError as error:  # of its own: an expression that does not end with this text
            raise bad_request(str(error)) from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens."""
        return str(self.tokenizer.decode(list(token_ids)))

    def token_bytes(self, token_id: int) -> bytes:
        """A token's UTF-8, which may be a part of a character."""
        if hasattr(self.tokenizer, "token_bytes"):
            return bytes(self.tokenizer.token_bytes(token_id))
        return self.decode([token_id]).encode("utf-8", "replace")

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Tokens as `tokenizer.json` spells them: `Ġa` for a space and an a."""
        names = self.tokenizer.backend_tokenizer
        return [names.id_to_token(token) or "" for token in token_ids]

    def token_text(self, token_id: int) -> str:
        """A token's text; what is no whole character becomes `�`."""
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
        """A conversation's tokens, up to where the assistant's turn begins.

        Args:
            messages: with the keys that Qwen3's chat template reads.
            tools: in OpenAI's form; None for none.
            variables: of the template, such as `enable_thinking`.
            add_generation_prompt: whether it ends where the assistant begins to speak.
            continue_final_message: whether the model continues the last message, which must be an
                assistant's.
            add_special_tokens: whether those are added that the tokenizer puts around a text;
                templates write their own.

        Raises:
            ApiError: there is no template, or it refuses the conversation.
        """
        template_input = ChatTemplateInput(messages, tools, variables)
        text = self._render(template_input, add_generation_prompt and not continue_final_message)
        if continue_final_message:
            text = _truncate_after(text, _decode_tool_arguments(messages[-1]))
            return ChatPrompt(self.encode(text, add_special_tokens), False, False)
        token_ids = self.encode(text, add_special_tokens)
        reasoning_open = text.rstrip().endswith(THINK_TAG)
        return ChatPrompt(token_ids, reasoning_open, self.thinking_enabled, template_input)

    def next_turn_prefix(self, before: ChatTemplateInput, said: str) -> list[int]:
        """What the prompt of the next turn will begin with: all tokens before the user's words.

        Templates leave out earlier thoughts, so it is not the last prompt with its answer.

        Args:
            before: of the last turn.
            said: the answer to it.

        Raises:
            ApiError: the template refuses the conversation.
        """
        answer = {"role": "assistant", "content": said}
        messages = [*before.messages, answer, {"role": "user", "content": PLACEHOLDER}]
        text = self._render(ChatTemplateInput(messages, before.tools, before.variables), False)
        known, found, _ = text.rpartition(PLACEHOLDER)
        # The last token may be another one, when it is followed by the user's words.
        return self.encode(known, False)[:-1] if found else []

    def _render(self, template_input: ChatTemplateInput, add_generation_prompt: bool) -> str:
        """A conversation's text; see `chat`."""
        if not getattr(self.tokenizer, "has_chat_template", False):
            raise bad_request("The model has no chat template; use /v1/completions.")
        tools = template_input.tools
        messages = [_decode_tool_arguments(message) for message in template_input.messages]
        if tools and "tools" not in json.dumps(self.tokenizer.chat_template):
            messages, tools = inline_tools(messages, tools), None
        elif "tool_calls" not in json.dumps(self.tokenizer.chat_template):
            messages = inline_tools(messages, [])
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **template_input.variables,
            )
        except Exception as error:  # a template is a program, which can fail in any way
            reason = str(error).rstrip(".") or type(error).__name__
            raise bad_request(f"The chat template refuses the conversation: {reason}.") from error
        return text


def _truncate_after(text: str, message: Message) -> str:
    """A conversation's text up to the end of what its last message says."""
    said = message["content"] if message["role"] == "assistant" else ""
    for content in (said, said.strip()):  # templates may strip it
        place = text.rfind(content)
        if content.strip() and place >= 0:
            return text[: place + len(content)]
    raise bad_request(
        "The last message cannot be continued; it must be a text that the assistant began.",
        "messages",
    )


def inline_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The same conversation for a template that knows only roles and texts."""
    written = [_flatten_message(message) for message in messages]
    if not tools:
        return written
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    section = TOOLS_TEMPLATE.format(tools=listed)
    if written and written[0]["role"] == "system":
        head = f"{written[0]['content']}\n\n{section}"
        return [{"role": "system", "content": head}, *written[1:]]
    return [{"role": "system", "content": section}, *written]


def _decode_tool_arguments(message: Message) -> Message:
    """A message whose tool calls have their arguments as templates want them: not as a text."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": list(map(_decode_arguments, calls))} if calls else message


def _decode_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {"name": function["name"], "arguments": arguments}}


def _flatten_message(message: Message) -> Message:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{content}\n</tool_response>",
        }
    calls = [
        f"{TOOL_CALL_TAG}\n{json.dumps(call['function'], ensure_ascii=False)}\n{TOOL_CALL_END_TAG}"
        for call in message.get("tool_calls") or ()
    ]
    return {"role": message["role"], "content": "\n".join([*filter(None, [content]), *calls])}


def check_token_ids(engine_info: Any, tokens: list[int]) -> None:
    """Refuses tokens that the model does not have.

    Raises:
        ApiError: 400.
    """
    for token in tokens:
        if token >= engine_info.vocab_size:
            raise bad_request(
                f"There is no token {token}; the model's are 0 to {engine_info.vocab_size - 1}."
            )
