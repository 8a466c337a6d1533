"""The chat protocols through their official clients, with one interface.

Tools are OpenAI's functions: `name`, `parameters`, perhaps `description` and `strict`. Messages are
dictionaries that all protocols accept, answers' `turn` and results of `Protocol.result`.
"""

import json
from collections.abc import Callable, Sequence
from inspect import signature
from types import SimpleNamespace
from typing import Any

import openai

from tests.server.running_server import RunningServer

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
MODES = {"auto": "auto", "required": "any", "none": "none"}  # of OpenAI and Anthropic
STOP_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}
Body = dict[str, Any]


class Protocol:
    """A chat protocol; subclasses write the parts of a request in their own form.

    `ask` sends the request of `body` through the official client. It returns text, reasoning,
    calls (id, name, arguments), finish (OpenAI's finish reason), prompt_tokens, cached_tokens,
    output_tokens, reasoning_tokens, turn (messages or items that continue the conversation), raw
    (the client's object), and argument_deltas (pieces of the calls' arguments, if streamed).
    `result` is a message with the result of a call.
    """

    path: str  # endpoint
    limit = "max_tokens"  # field for the maximum number of output tokens
    ask: Callable[..., SimpleNamespace]

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
            body["tools"] = [self.tool(tool) for tool in tools]
            body |= self.tool_choice(choice, parallel)
        if schema is not None:
            body |= self.response_format(schema)
        return body | fields

    def conversation(self, messages: Sequence[Body]) -> Body:
        return {"messages": list(messages)}

    def named(self, choice: str) -> Body:
        return {"type": "function", "name": choice}

    def tool_choice(self, choice: str | Body, parallel: bool) -> Body:
        if isinstance(choice, str) and choice not in MODES:
            choice = self.named(choice)
        return {"tool_choice": choice, "parallel_tool_calls": parallel}

    def count(self, server: RunningServer, *args: Any, **fields: Any) -> int:
        """Number of prompt tokens of the request of `body`."""
        return self.ask(server, *args, max_tokens=1, **fields).prompt_tokens


def send(method: Callable[..., Any], body: Body) -> Any:
    """Calls a client's method; fields that it does not know are its `extra_body`."""
    known = signature(method).parameters
    extra = {name: value for name, value in body.items() if name not in known}
    return method(**{name: body[name] for name in body if name in known}, extra_body=extra)


def call(call_id: str, name: str, arguments: str) -> SimpleNamespace:
    return SimpleNamespace(id=call_id, name=name, arguments=json.loads(arguments))


class Chat(Protocol):
    path = "/v1/chat/completions"

    def reasoning(self, effort: str | None) -> Body:
        return {} if effort is None else {"reasoning_effort": effort}

    def tool(self, tool: Body) -> Body:
        return {"type": "function", "function": tool}

    def named(self, choice: str) -> Body:
        return {"type": "function", "function": {"name": choice}}

    def response_format(self, schema: Body) -> Body:
        named = {"name": "answer", "schema": schema}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    def result(self, call: SimpleNamespace, text: Any) -> Body:
        return {"role": "tool", "tool_call_id": call.id, "content": text}

    def ask(self, server, *args, stream=False, **fields):
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
        calls = [
            (c.id, c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()
        ]
        return SimpleNamespace(
            text=choice.message.content or "",
            reasoning=getattr(choice.message, "reasoning_content", None) or "",
            calls=[call(*each) for each in calls],
            finish=choice.finish_reason,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens,
            output_tokens=usage.completion_tokens,
            reasoning_tokens=usage.completion_tokens_details.reasoning_tokens,
            turn=[choice.message.to_dict()],
            raw=raw,
            argument_deltas=deltas,
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

    def response_format(self, schema: Body) -> Body:
        return {"text": {"format": {"type": "json_schema", "name": "answer", "schema": schema}}}

    def result(self, call: SimpleNamespace, text: Any) -> Body:
        return {"type": "function_call_output", "call_id": call.id, "output": text}

    def ask(self, server, *args, stream=False, **fields):
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
        items = {kind: [] for kind in ("function_call", "reasoning", "message")}
        for item in raw.output:
            items[item.type].append(item)
        calls = [call(item.call_id, item.name, item.arguments) for item in items["function_call"]]
        done, usage = "tool_calls" if calls else "stop", raw.usage
        return SimpleNamespace(
            text=raw.output_text,
            reasoning="".join(part.text for item in items["reasoning"] for part in item.content),
            calls=calls,
            finish={"completed": done, "incomplete": "length"}[raw.status],
            prompt_tokens=usage.input_tokens,
            cached_tokens=usage.input_tokens_details.cached_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.output_tokens_details.reasoning_tokens,
            turn=[item.to_dict(exclude_none=True) for item in raw.output],
            raw=raw,
            argument_deltas=deltas,
        )

    def count(self, server: RunningServer, *args: Any, **fields: Any) -> int:
        body = self.body(*args, **fields)
        return send(server.openai.responses.input_tokens.count, body).input_tokens


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
            named = {"type": "tool", "name": choice}
            choice = {"type": MODES[choice]} if choice in MODES else named
        return {"tool_choice": choice | ({} if parallel else {"disable_parallel_tool_use": True})}

    def response_format(self, schema: Body) -> Body:
        return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}

    def result(self, call: SimpleNamespace, text: Any) -> Body:
        block = {"type": "tool_result", "tool_use_id": call.id, "content": text}
        return {"role": "user", "content": [block]}

    def ask(self, server, *args, stream=False, **fields):
        body, deltas = self.body(*args, **fields), []
        if stream:
            with send(server.anthropic.messages.stream, body) as events:
                deltas = [event.partial_json for event in events if event.type == "input_json"]
                raw = events.get_final_message()
        else:
            raw = send(server.anthropic.messages.create, body)
        blocks, usage = raw.content, raw.usage
        details = usage.output_tokens_details
        calls = [
            SimpleNamespace(id=b.id, name=b.name, arguments=b.input)
            for b in blocks
            if b.type == "tool_use"
        ]
        return SimpleNamespace(
            text="".join(block.text for block in blocks if block.type == "text"),
            reasoning="".join(block.thinking for block in blocks if block.type == "thinking"),
            calls=calls,
            finish=STOP_REASONS.get(raw.stop_reason, "tool_calls"),
            prompt_tokens=usage.input_tokens + usage.cache_read_input_tokens,
            cached_tokens=usage.cache_read_input_tokens,
            output_tokens=usage.output_tokens,
            reasoning_tokens=details.thinking_tokens if details else 0,
            turn=[{"role": "assistant", "content": [block.to_dict() for block in blocks]}],
            raw=raw,
            argument_deltas=deltas,
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
