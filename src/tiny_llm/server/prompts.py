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

from ..errors import UserError
from .answer_parser import CALL, CALL_END, THINK
from .errors import refused

T = TypeVar("T")
Message = dict[str, Any]

WORKERS = 2  # tokenizing lets other threads run; templates do not
PLACEHOLDER = "what-the-user-will-say"  # in the place of words that are not known yet

TOOLS = """# Tools

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
        in_thought: whether it ends inside the model's thoughts.
        may_think: whether the answer may begin with thoughts; not if it was begun already.
        conversation: what it was made of; None if it continues a turn that was begun.
    """

    token_ids: list[int]
    in_thought: bool
    may_think: bool
    conversation: "Conversation | None" = None


@dataclass(frozen=True)
class Conversation:
    """What a prompt is made of; see `Prompts.chat`."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None
    variables: Mapping[str, Any]


class Prompts:
    """Makes prompts for one tokenizer.

    Args:
        tokenizer: of the model; read by several threads.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="prompts")

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *args)

    @property
    def may_think(self) -> bool:
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
            raise refused(f"The prompt has {half}, half of a character; give whole ones.") from None
        try:
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))
        except UserError as error:  # of its own: an expression that does not end with this text
            raise refused(str(error)) from error

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens."""
        return str(self.tokenizer.decode(list(token_ids)))

    def token_bytes(self, token_id: int) -> bytes:
        """A token's UTF-8, which may be a part of a character."""
        if hasattr(self.tokenizer, "token_bytes"):
            return bytes(self.tokenizer.token_bytes(token_id))
        return self.decode([token_id]).encode("utf-8", "replace")

    def token_names(self, token_ids: Sequence[int]) -> list[str]:
        """Tokens as `tokenizer.json` spells them: `Ġa` for a space and an a."""
        names = self.tokenizer.backend_tokenizer
        return [names.id_to_token(token) or "" for token in token_ids]

    def token_text(self, token_id: int) -> str:
        """A token's text; what is no whole character becomes `�`."""
        return self.token_bytes(token_id).decode(errors="replace")

    def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any],
        add_generation_prompt: bool = True,
        continues: bool = False,
        add_special_tokens: bool = False,
    ) -> ChatPrompt:
        """A conversation's tokens, up to where the assistant's turn begins.

        Args:
            messages: with the keys that Qwen3's chat template reads.
            tools: in OpenAI's form; None for none.
            variables: of the template, such as `enable_thinking`.
            add_generation_prompt: whether it ends where the assistant begins to speak.
            continues: whether the model continues the last message, which must be an assistant's.
            add_special_tokens: whether those are added that the tokenizer puts around a text;
                templates write their own.

        Raises:
            ApiError: there is no template, or it refuses the conversation.
        """
        conversation = Conversation(messages, tools, variables)
        text = self._render(conversation, add_generation_prompt and not continues)
        if continues:
            text = _cut_after(text, _with_objects(messages[-1]))
            return ChatPrompt(self.encode(text, add_special_tokens), False, False)
        token_ids = self.encode(text, add_special_tokens)
        in_thought = text.rstrip().endswith(THINK)
        return ChatPrompt(token_ids, in_thought, self.may_think, conversation)

    def next_turn(self, before: Conversation, said: str) -> list[int]:
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
        text = self._render(Conversation(messages, before.tools, before.variables), False)
        known, found, _ = text.rpartition(PLACEHOLDER)
        # The last token may be another one, when it is followed by the user's words.
        return self.encode(known, False)[:-1] if found else []

    def _render(self, conversation: Conversation, add_generation_prompt: bool) -> str:
        """A conversation's text; see `chat`."""
        if not getattr(self.tokenizer, "has_chat_template", False):
            raise refused("The model has no chat template; use /v1/completions.")
        tools = conversation.tools
        messages = [_with_objects(message) for message in conversation.messages]
        if tools and "tools" not in json.dumps(self.tokenizer.chat_template):
            messages, tools = with_tools_in_text(messages, tools), None
        elif "tool_calls" not in json.dumps(self.tokenizer.chat_template):
            messages = with_tools_in_text(messages, [])
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **conversation.variables,
            )
        except Exception as error:  # a template is a program, which can fail in any way
            reason = str(error).rstrip(".") or type(error).__name__
            raise refused(f"The chat template refuses the conversation: {reason}.") from error
        return text


def _cut_after(text: str, message: Message) -> str:
    """A conversation's text up to the end of what its last message says."""
    said = message["content"] if message["role"] == "assistant" else ""
    for content in (said, said.strip()):  # templates may strip it
        place = text.rfind(content)
        if content.strip() and place >= 0:
            return text[: place + len(content)]
    raise refused(
        "The last message cannot be continued; it must be a text that the assistant began.",
        "messages",
    )


def with_tools_in_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """The same conversation for a template that knows only roles and texts."""
    written = [_as_text(message) for message in messages]
    if not tools:
        return written
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    section = TOOLS.format(tools=listed)
    if written and written[0]["role"] == "system":
        head = f"{written[0]['content']}\n\n{section}"
        return [{"role": "system", "content": head}, *written[1:]]
    return [{"role": "system", "content": section}, *written]


def _with_objects(message: Message) -> Message:
    """A message whose tool calls have their arguments as templates want them: not as a text."""
    calls = message.get("tool_calls")
    return {**message, "tool_calls": list(map(_with_object, calls))} if calls else message


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {"name": function["name"], "arguments": arguments}}


def _as_text(message: Message) -> Message:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {
            "role": "user",
            "content": f"<tool_response>\n{content}\n</tool_response>",
        }
    calls = [
        f"{CALL}\n{json.dumps(call['function'], ensure_ascii=False)}\n{CALL_END}"
        for call in message.get("tool_calls") or ()
    ]
    return {"role": message["role"], "content": "\n".join([*filter(None, [content]), *calls])}
