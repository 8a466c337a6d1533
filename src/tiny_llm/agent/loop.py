"""Agent loop: the model calls tools until it answers, or the step limit is reached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import UserError, check_int
from .models import ChatModel, Message
from .tools import Tool, run_call

DEFAULT_MAX_STEPS = 20


@dataclass
class Transcript:
    """Record of an agent run.

    Attributes:
        messages: all messages; append-only.
        context: messages sent to the model: `messages`, or fewer after compaction.
        steps: number of messages from the model.
        stop_reason: "answer" or "max_steps"; None during the run.
    """

    messages: list[Message] = field(default_factory=list)
    context: list[Message] = field(default_factory=list)
    steps: int = 0
    stop_reason: Literal["answer", "max_steps"] | None = None

    @property
    def answer(self) -> str | None:
        """The model's answer; None if the run did not end with an answer."""
        return self.messages[-1]["content"] if self.stop_reason == "answer" else None

    def append(self, message: Message) -> None:
        self.messages.append(message)
        self.context.append(message)

    def fork(self) -> "Transcript":
        """Returns a copy with separate message lists; messages are never modified."""
        return Transcript(list(self.messages), list(self.context), self.steps, self.stop_reason)


class Agent:
    """A model with tools.

    Args:
        model: writes the assistant messages.
        tools: functions that the model may call; names must be unique.
        max_steps: maximum number of messages from the model in a run.
        system_prompt: first message of every run, or None.
        compact: shortens a conversation before it is sent (see `Compaction`); None to disable.

    Attributes:
        tools: the tools by name.
        definitions: the tools in OpenAI's format.

    Raises:
        UserError: two tools have the same name, or `max_steps` is below 1.
    """

    def __init__(
        self,
        model: ChatModel,
        tools: Sequence[Tool],
        max_steps: int = DEFAULT_MAX_STEPS,
        system_prompt: str | None = None,
        compact: Callable[[Sequence[Message]], list[Message]] | None = None,
    ):
        check_int("max_steps", max_steps, 1)
        self.model = model
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) < len(tools):
            names = ", ".join(tool.name for tool in tools)
            raise UserError(f"tool names must be unique, got {names}.")
        self.max_steps = max_steps
        self.definitions = [tool.definition for tool in tools]
        self._system_prompt = system_prompt
        self._compact = compact

    def start(self, task: str) -> Transcript:
        transcript = Transcript()
        if self._system_prompt is not None:
            transcript.append({"role": "system", "content": self._system_prompt})
        transcript.append({"role": "user", "content": task})
        return transcript

    def run(self, task: str, seed: int = 0) -> Transcript:
        """Runs a task to completion; all requests to the model use `seed`."""
        return self.resume(self.start(task), seed)

    def resume(
        self,
        transcript: Transcript,
        seed: int = 0,
        on_step: Callable[[Transcript], None] = lambda transcript: None,
    ) -> Transcript:
        """Continues a run in place until it stops, and returns it.

        A run that stopped at the step limit continues if this agent's limit is higher; an answered
        run does not. Calls `on_step` after each step: after the last one, the stop reason is
        "answer", or None if the run then stops at the limit.
        """
        # [task 7.1.4 resume]
        if transcript.stop_reason == "max_steps":
            transcript.stop_reason = None
        while transcript.stop_reason is None:
            if transcript.steps >= self.max_steps:
                transcript.stop_reason = "max_steps"
            else:
                self.step(transcript, seed)
                on_step(transcript)
        return transcript
        # [/task 7.1.4 resume]

    def step(self, transcript: Transcript, seed: int = 0) -> None:
        """Compacts the context; appends the model's message and the tool results.

        A message without tool calls is the answer and ends the run.
        """
        if self._compact is not None:
            transcript.context = self._compact(transcript.context)
        # [task 7.1.3 step]
        message = self.model.complete(transcript.context, self.definitions, seed)
        transcript.append(message)
        transcript.steps += 1
        calls = message.get("tool_calls") or []
        for call in calls:
            transcript.append(run_call(call, self.tools))
        if not calls:
            transcript.stop_reason = "answer"
        # [/task 7.1.3 step]
