"""The chat protocols through their official clients, with one interface.

Tools are OpenAI's functions: `name`, `parameters`, perhaps `description` and `strict`. Messages are
dictionaries that all protocols accept, answers' `turn` and results of `Protocol.result`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import openai

from tests.server.running_server import RunningServer

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
MODES = {"auto": "auto", "required": "any", "none": "none"}  # of OpenAI and Anthropic
STOP_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}
Body = dict[str, Any]


@dataclass
class Call:
    """A tool call."""

    id: str
    name: str
    arguments: Any


@dataclass
class Answer:
    """A response of any protocol.

    Args:
        finish: OpenAI's finish reason.
        turn: messages or items that continue the conversation.
        argument_deltas: pieces of the tool calls' arguments, if streamed.
        raw: the client's object.
    """

    text: str
    reasoning: str
    calls: list[Call]
    finish: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    turn: list[Body]
    raw: Any
    argument_deltas: list[str] = field(default_factory=list)


class Protocol:
    """A chat protocol; subclasses write the parts of a request in their own form.

    Attributes:
        path: its endpoint.
        limit: its field for the maximum number of output tokens.
    """

    path: str
    limit = "max_tokens"
    reasoning: Callable[..., Body]
    tool: Callable[..., Body]
    tool_choice: Callable[..., Body]
    response_format: Callable[..., Body]
    result: Callable[..., Body]  # message with the result of a call
    ask: Callable[..., Answer]  # sends the request of `body` through the official client

    def __str__(self) -> str:
        return self.path.rpartition("/")[2]

    def body(
        self,
        messages: str | Sequence[Body] = FRANCE,
        tools: Sequence[Body] = (),
        choice: str | Body = "auto",
        parallel: bool = True,
        schema: Body | None = None,
        effort: str | None = "none",
        **fields: Any,
    ) -> Body:
        """A request.

        Args:
            choice: "auto", "required", "none", a tool's name, or the protocol's own form.
            parallel: whether several calls are allowed.
            schema: of the response format.
            effort: of reasoning; "none" turns it off, and None is the server's default.
            fields: further fields. `max_tokens` is translated.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"model": "demo", **self.conversation(messages), **self.reasoning(effort)}
        if "max_tokens" in fields:
            fields[self.limit] = fields.pop("max_tokens")
        if tools:
            body |= {
                "tools": [self.tool(tool) for tool in tools],
                **self.tool_choice(choice, parallel),
            }
        if schema is not None:
            body |= self.response_format(schema)
        return body | fields

    def conversation(self, messages: Sequence[Body]) -> Body:
        return {"messages": list(messages)}

    def count(self, server: RunningServer, *args: Any, **fields: Any) -> int:
        """Number of prompt tokens of the request of `body`."""
        return self.ask(server, *args, max_tokens=1, **fields).prompt_tokens


def send(method: Callable[..., Any], body: Body) -> Any:
    """Calls a client's method; fields that it does not know are its `extra_body`."""
    known = signature(method).parameters
    extra = {name: value for name, value in body.items() if name not in known}
    return method(
        **{name: value for name, value in body.items() if name in known}, extra_body=extra
    )


class Chat(Protocol):
    path = "/v1/chat/completions"

    def reasoning(self, effort: str | None) -> Body:
        return {} if effort is None else {"reasoning_effort": effort}

    def tool(self, tool: Body) -> Body:
        return {"type": "function", "function": tool}

    def tool_choice(self, choice: str | Body, parallel: bool) -> Body:
        if isinstance(choice, str) and choice not in MODES:
            choice = {"type": "function", "function": {"name": choice}}
        return {"tool_choice": choice, "parallel_tool_calls": parallel}

    def response_format(self, schema: Body) -> Body:
        named = {"name": "answer", "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    def result(self, call: Call, text: Any) -> Body:
        return {"role": "tool", "tool_call_id": call.id, "content": text}

    def ask(self, server: RunningServer, *args: Any, stream: bool = False, **fields: Any) -> Answer:
        body, deltas = self.body(*args, **fields), []
        completions = server.openai.chat.completions
        if stream:
            body["stream_options"] = {"include_usage": True}
            with send(completions.stream, body) as events:
                for event in events:
                    if event.type == "tool_calls.function.arguments.delta":
                        deltas.append(event.arguments_delta)
                try:
                    raw = events.get_final_completion()
                except openai.LengthFinishReasonError as error:  # the client does not return these
                    raw = error.completion
        else:
            raw = send(completions.create, body)
        [choice], usage = raw.choices, raw.usage
        message = choice.message
        calls = [
            Call(call.id, call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls or ()
        ]
        return Answer(
            message.content or "",
            getattr(message, "reasoning_content", None) or "",
            calls,
            choice.finish_reason,
            usage.prompt_tokens,
            usage.prompt_tokens_details.cached_tokens,
            usage.completion_tokens,
            usage.completion_tokens_details.reasoning_tokens,
            [message.to_dict()],
            raw,
            deltas,
        )


class Responses(Protocol):
    path = "/v1/responses"
    limit = "max_output_tokens"

    def conversation(self, messages: Sequence[Body]) -> Body:
        return {"input": list(messages)}

    def reasoning(self, effort: str | None) -> Body:
        return {} if effort is None else {"reasoning": {"effort": effort}}

    def tool(self, tool: Body) -> Body:
        return {"type": "function", **tool}

    def tool_choice(self, choice: str | Body, parallel: bool) -> Body:
        if isinstance(choice, str) and choice not in MODES:
            choice = {"type": "function", "name": choice}
        return {"tool_choice": choice, "parallel_tool_calls": parallel}

    def response_format(self, schema: Body) -> Body:
        return {"text": {"format": {"type": "json_schema", "name": "answer", "schema": schema}}}

    def result(self, call: Call, text: Any) -> Body:
        return {"type": "function_call_output", "call_id": call.id, "output": text}

    def ask(self, server: RunningServer, *args: Any, stream: bool = False, **fields: Any) -> Answer:
        body, deltas = self.body(*args, **fields), []
        responses = server.openai.responses
        if stream:
            with send(responses.stream, body) as events:
                for event in events:
                    if event.type == "response.function_call_arguments.delta":
                        deltas.append(event.delta)
                    elif event.type in ("response.completed", "response.incomplete"):
                        raw = event.response
        else:
            raw = send(responses.create, body)
        calls = [
            Call(item.call_id, item.name, json.loads(item.arguments))
            for item in raw.output
            if item.type == "function_call"
        ]
        done = "tool_calls" if calls else "stop"
        reasoning = [
            part for item in raw.output if item.type == "reasoning" for part in item.content
        ]
        usage = raw.usage
        return Answer(
            raw.output_text,
            "".join(part.text for part in reasoning),
            calls,
            {"completed": done, "incomplete": "length"}[raw.status],
            usage.input_tokens,
            usage.input_tokens_details.cached_tokens,
            usage.output_tokens,
            usage.output_tokens_details.reasoning_tokens,
            [item.to_dict(exclude_none=True) for item in raw.output],
            raw,
            deltas,
        )

    def count(self, server: RunningServer, *args: Any, **fields: Any) -> int:
        return send(
            server.openai.responses.input_tokens.count, self.body(*args, **fields)
        ).input_tokens


class Messages(Protocol):
    path = "/v1/messages"

    def body(self, *args: Any, **fields: Any) -> Body:
        return super().body(*args, **{"max_tokens": 500, **fields})

    def conversation(self, messages: Sequence[Body]) -> Body:
        if messages[0]["role"] == "system":
            return {"system": messages[0]["content"], "messages": list(messages[1:])}
        return {"messages": list(messages)}

    def reasoning(self, effort: str | None) -> Body:
        return {} if effort == "none" else {"thinking": {"type": "adaptive"}}

    def tool(self, tool: Body) -> Body:
        return {"input_schema" if name == "parameters" else name: tool[name] for name in tool}

    def tool_choice(self, choice: str | Body, parallel: bool) -> Body:
        if isinstance(choice, str):
            choice = (
                {"type": MODES[choice]} if choice in MODES else {"type": "tool", "name": choice}
            )
        return {
            "tool_choice": choice if parallel else {**choice, "disable_parallel_tool_use": True}
        }

    def response_format(self, schema: Body) -> Body:
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}

    def result(self, call: Call, text: Any) -> Body:
        block = {"type": "tool_result", "tool_use_id": call.id, "content": text}
        return {"role": "user", "content": [block]}

    def ask(self, server: RunningServer, *args: Any, stream: bool = False, **fields: Any) -> Answer:
        body, deltas = self.body(*args, **fields), []
        if stream:
            with send(server.anthropic.messages.stream, body) as events:
                deltas = [event.partial_json for event in events if event.type == "input_json"]
                raw = events.get_final_message()
        else:
            raw = send(server.anthropic.messages.create, body)
        usage = raw.usage
        details = usage.output_tokens_details
        return Answer(
            "".join(block.text for block in raw.content if block.type == "text"),
            "".join(block.thinking for block in raw.content if block.type == "thinking"),
            [Call(b.id, b.name, b.input) for b in raw.content if b.type == "tool_use"],
            STOP_REASONS.get(raw.stop_reason, "tool_calls"),
            usage.input_tokens + usage.cache_read_input_tokens,
            usage.cache_read_input_tokens,
            usage.output_tokens,
            details.thinking_tokens if details else 0,
            [{"role": "assistant", "content": [block.to_dict() for block in raw.content]}],
            raw,
            deltas,
        )

    def count(self, server: RunningServer, *args: Any, **fields: Any) -> int:
        body = self.body(*args, **fields)
        del body["max_tokens"]
        return send(server.anthropic.messages.count_tokens, body).input_tokens


CHAT, RESPONSES, MESSAGES = Chat(), Responses(), Messages()
PROTOCOLS = [CHAT, RESPONSES, MESSAGES]
PATHS = ["/v1/completions", *(protocol.path for protocol in PROTOCOLS)]


def small_body(path: str, text: str = FRANCE, **fields: Any) -> Body:
    """A request of an endpoint of `PATHS`."""
    if path == "/v1/completions":
        return {"model": "demo", "prompt": text, **fields}
    return next(p for p in PROTOCOLS if p.path == path).body(text, **fields)
