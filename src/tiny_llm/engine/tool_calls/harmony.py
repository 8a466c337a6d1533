"""Harmony: messages with a channel and a recipient, the format of gpt-oss.

    <|channel|>analysis<|message|>The user wants a sum.<|end|><|start|>assistant
    <|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 17, "b": 25}<|call|>

Line breaks are for readability. The recipient may also precede the channel, as in the chat
template: `assistant to=functions.add<|channel|>commentary json`. The channel `final` has the
answer. `<|call|>` and `<|return|>` end the output, `<|end|>` only a message.

Source: OpenAI, "OpenAI Harmony Response Format" (2025).
"""

import re
from dataclasses import dataclass

from .format import (
    ArgumentsDelta,
    CallEnd,
    CallGrammar,
    CallStart,
    Events,
    Functions,
    MalformedCallError,
    SpecialTokens,
    TextSource,
    ToolCallFormat,
    ToolCallRules,
    literal,
    tag,
    text_until,
    text_without,
)
from .json_calls import argument_schemas, parse_arguments

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL = "<|end|>", "<|call|>"
MESSAGE_ENDS = (END, CALL, "<|return|>", START)
NAMESPACE = "functions."  # prefix of the request's tools in recipients
EFFORTS = ("low", "medium", "high")  # levels of `reasoning_effort` that gpt-oss was trained on
GENERATION_PROMPT = f"{START}assistant"

RECIPIENT = re.compile(r"to=([^\s<]+)")
CHANNEL_NAME = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")


@dataclass(frozen=True)
class MessageHeader:
    channel: str = ""  # "analysis", "commentary" or "final"
    recipient: str = ""  # "functions.NAME" in a call

    @classmethod
    def parse(cls, text: str) -> "MessageHeader":
        """Parses the text before `<|message|>`."""
        channel, recipient = CHANNEL_NAME.search(text), RECIPIENT.search(text)
        return cls(channel[1] if channel else "", recipient[1] if recipient else "")

    @property
    def function(self) -> str | None:
        is_call = self.recipient.startswith(NAMESPACE)
        return self.recipient.removeprefix(NAMESPACE) if is_call else None

    @property
    def is_content(self) -> bool:
        """Whether the message is visible output: the answer, or commentary before a call."""
        return self.channel == "final" or (self.channel == "commentary" and not self.recipient)


class HarmonyFormat(ToolCallFormat):
    """A call is a message to `functions.NAME`; its text starts with the message's header."""

    name = "openai"
    tags = ()  # `HarmonyParser` detects calls by their headers

    def parse(self, source: TextSource, functions: Functions) -> Events:
        header = yield from source.read_until((MESSAGE,), "")
        name = MessageHeader.parse(header).function
        if not name:
            raise MalformedCallError
        yield from source.accept(MESSAGE)
        yield from source.skip_space()
        if source.buffer.startswith("{"):
            yield CallStart(name)
            yield from parse_arguments(source)
            yield from source.skip_space()
            yield from source.accept(CALL, END)
            return
        has_ended = (yield from source.accept(CALL, END)) or not source.buffer
        if not has_ended or source.is_truncated:
            raise MalformedCallError
        yield CallStart(name)  # empty body
        yield ArgumentsDelta("{}")
        yield CallEnd()

    def grammar(self, rules: ToolCallRules) -> CallGrammar:
        """Includes the reasoning. `<|call|>` ends the output, so calls are never parallel."""
        tokens = rules.special_tokens
        final = _header("final", tokens)
        lark, start = _thoughts(tokens), "start: thought* call"
        match rules.choice:
            case "structured":
                start = f"start: thought* (call | {final} @response)"
            case "auto":
                start = f"start: (thought | preamble)* (call | {final} answer)"
                lark += _message("preamble", "commentary", tokens)
                lark += text_without("answer", END, tokens)
        calls = [
            f"{_call_header(function['name'], tokens)} @arguments_{index}"
            for index, function in enumerate(rules.functions)
        ]
        lark = f"{start}\ncall: {' | '.join(calls)}\n{lark}"
        return CallGrammar(lark, argument_schemas(rules.functions))


def structured_grammar(special_tokens: SpecialTokens) -> str:
    """Returns the Lark grammar of reasoning, then `@body` in the channel `final`."""
    final = _header("final", special_tokens)
    return f"start: thought* {final} @body\n{_thoughts(special_tokens)}"


def _thoughts(tokens: SpecialTokens) -> str:
    return _message("thought", "analysis", tokens)


def _message(rule: str, channel: str, tokens: SpecialTokens) -> str:
    """Lark rules for a message on a channel and the start of the next message."""
    head = _header(channel, tokens)
    return f'{rule}: {head} {rule}_text {tag(START, tokens)} "assistant"\n' + text_until(
        f"{rule}_text", END, tokens
    )


def _header(channel: str, tokens: SpecialTokens) -> str:
    return f"{tag(CHANNEL, tokens)} {literal(channel)} {tag(MESSAGE, tokens)}"


def _call_header(name: str, tokens: SpecialTokens) -> str:
    """Lark expression for both forms of a call's header."""
    recipient, channel = f"to={NAMESPACE}{name}", tag(CHANNEL, tokens)
    either = (
        f'({literal(f" {recipient}")} {channel} "commentary"'
        f" | {channel} {literal(f'commentary {recipient}')})"
    )
    kind = f'(" json" | " "? {tag(CONSTRAIN, tokens)} "json")?'
    return f"{either} {kind} {tag(MESSAGE, tokens)}"
