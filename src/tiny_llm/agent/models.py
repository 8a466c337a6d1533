"""Chat models of the agent: in-process engine, remote server, script.

A message is a dictionary in OpenAI's chat format. An assistant message without `tool_calls` is an
answer; a call's arguments are the model's unparsed JSON text.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..cli.backends.remote import OpenAIClient
from ..engine.inputs.prompts import ChatOptions, encode_prompt
from ..engine.inputs.sampling_params import SamplingParams
from ..engine.llm import LLM
from ..engine.outputs.output_parser import TextDelta, make_output_parser
from ..engine.tool_calls.format import ToolCallDelta, ToolCallOptions
from ..engine.tool_calls.registry import AUTO, find_format
from ..errors import UserError
from ..models.tokenizer.chat_template import opens_reasoning, think_tags

Message = dict[str, Any]


@dataclass
class Usage:
    """Token counts over all requests to a model."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    max_prompt_tokens: int = 0

    def add(self, prompt_tokens: int, cached_tokens: int) -> None:
        self.requests += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.max_prompt_tokens = max(self.max_prompt_tokens, prompt_tokens)

    @property
    def hit_rate(self) -> float:
        """Fraction of prompt tokens found in the prefix cache."""
        return self.cached_tokens / max(1, self.prompt_tokens)


class ChatModel(Protocol):
    """A model that writes the next assistant message."""

    usage: Usage

    def complete(self, messages: Sequence[Message], tools: Sequence[Message], seed: int) -> Message:
        """Returns the assistant message that follows `messages`.

        Args:
            messages: the conversation, not modified.
            tools: function tools in OpenAI's format.
            seed: sampling seed; equal arguments produce equal messages.

        Raises:
            UserError: the model rejects the request, e.g. a prompt beyond its context.
        """


def assistant(text: str | None = None, *calls: tuple[str, Any], turn: int = 0) -> Message:
    """Builds an assistant message.

    Args:
        calls: (name, arguments) of each tool call; arguments are an object or JSON text.
        turn: number that makes the calls' ids unique in a conversation.
    """
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{turn}_{index}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for index, (name, arguments) in enumerate(calls)
        ]
    return message


Script = Sequence[Message] | Callable[[Sequence[Message], int], Message]


class ScriptedModel:
    """Model that replays a script, for tests and demonstrations.

    Args:
        script: assistant messages in order, or a function of the conversation and the seed.

    Attributes:
        prompts: the conversations of all requests so far.
    """

    def __init__(self, script: Script):
        self.usage = Usage()
        self.prompts: list[list[Message]] = []
        self._script = script

    @classmethod
    def from_json(cls, text: str) -> "ScriptedModel":
        """Reads a JSON list: answers (strings) and lists of [name, arguments] calls.

        Raises:
            UserError: the text is not a valid script.
        """
        try:
            turns = [
                [turn] if isinstance(turn, str) else [None, *turn] for turn in json.loads(text)
            ]
            return cls([assistant(*turn, turn=number) for number, turn in enumerate(turns)])
        except (ValueError, TypeError) as error:
            raise UserError(
                'a script must be a JSON list, e.g. [[["read_file", {"path": "a.txt"}]], '
                f'"The answer."]: {error}.'
            ) from error

    def complete(self, messages: Sequence[Message], tools: Sequence[Message], seed: int) -> Message:
        number = len(self.prompts)
        self.prompts.append(list(messages))
        self.usage.add(0, 0)
        if callable(self._script):
            return self._script(messages, seed)
        if number >= len(self._script):
            raise UserError(
                f"the script has only {number} messages, but the agent requested another."
            )
        return self._script[number]


class LocalModel:
    """A model on an engine in this process.

    Args:
        max_tokens: maximum tokens per message; None allows up to the context length.
        script: messages to return instead of the model's; the engine then only prefills the
            prompts, which fills its prefix cache.
    """

    def __init__(
        self,
        llm: LLM,
        temperature: float = 0.0,
        max_tokens: int | None = None,
        script: ScriptedModel | None = None,
    ):
        self.usage = Usage()
        self._llm = llm
        self._script = script
        self._params = {"temperature": temperature, "max_tokens": 1 if script else max_tokens}
        self._format = find_format(AUTO, getattr(llm.tokenizer, "chat_template", None))

    def complete(self, messages: Sequence[Message], tools: Sequence[Message], seed: int) -> Message:
        params = SamplingParams(**self._params, seed=seed)  # type: ignore[arg-type]
        options = {"tools": tools, "use_tqdm": False}
        [output] = self._llm.generate([list(messages)], params, **options)  # type: ignore[arg-type]
        if output.error is not None:
            raise UserError(output.error)
        self.usage.add(len(output.prompt_token_ids), output.num_cached_tokens)
        if self._script is not None:
            return self._script.complete(messages, tools, seed)
        tool_calls = ToolCallOptions(self._format, tools) if tools else None
        tokenizer, tags = self._llm.tokenizer, think_tags(self._llm.tokenizer)
        reasoning_open = opens_reasoning(tokenizer.decode(output.prompt_token_ids), tags)
        parser = make_output_parser(self._format, True, reasoning_open, tool_calls, think_tags=tags)
        deltas = [*parser.feed(output.text), *parser.finish(output.finish_reason == "length")]
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        calls = [(d.name, d.arguments) for d in deltas if isinstance(d, ToolCallDelta)]
        message = assistant(text or None, *calls, turn=len(messages))
        for call in message.get("tool_calls", ()):
            call["id"] = self._format.valid_call_id(call["id"])
        return message

    def cached_pages(self, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
        """Ids of the pages with the conversation's longest cached prefix, in order."""
        scheduler, chat = self._llm.scheduler, ChatOptions(tools=tools)
        max_length = scheduler.config.max_seq_len
        token_ids = encode_prompt(self._llm.tokenizer, list(messages), chat, max_length)
        return [node.page for node in scheduler.pages.cache.match(token_ids)]


class OpenAIModel:
    """A model on any server with OpenAI's chat completions API.

    See `OpenAIClient` for `url`, `model` and errors.

    Args:
        options: additional request fields, e.g. temperature.
    """

    def __init__(
        self, url: str, model: str | None = None, api_key: str | None = None, **options: Any
    ):
        self.usage = Usage()
        self._client = OpenAIClient(url, model, api_key)
        self._options = options

    def complete(self, messages: Sequence[Message], tools: Sequence[Message], seed: int) -> Message:
        body = {**self._options, "messages": list(messages), "seed": seed}
        reply = self._client.complete({**body, "tools": tools} if tools else body)
        try:
            message = reply["choices"][0]["message"]
            fields = {key: message[key] for key in ("content", "tool_calls") if message.get(key)}
            texts = [fields.get("content", "")]
            for call in fields.get("tool_calls", ()):
                texts += [call["id"], call["function"]["name"], call["function"]["arguments"]]
            if not all(isinstance(text, str) for text in texts):
                raise TypeError("not a text")
            usage = reply.get("usage") or {}
            details = usage.get("prompt_tokens_details") or {}
            self.usage.add(usage.get("prompt_tokens", 0), details.get("cached_tokens") or 0)
        except (LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{self._client.url} did not return a chat completion.") from error
        return {"role": "assistant", "content": None, **fields}
