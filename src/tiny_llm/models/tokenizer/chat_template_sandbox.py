"""Chat templates in a process of their own, with bounds on time and memory.

A template is a program that came with the weights. Jinja's sandbox keeps it from files and from
Python's insides, but not from running for ever or taking all memory: `{% for i in range(99999) %}`
inside itself is enough. The process runs `chat_template_main.py` and nothing else of this package.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .sandbox import SandboxedProcess

TIMEOUT_SECONDS = 2.0  # for a conversation
MAX_MEMORY_BYTES = 2**29  # of the process

PROGRAM = Path(__file__).with_name("chat_template_main.py")


class ChatTemplateSandbox:
    """Renders conversations. May be used by several threads, which wait for each other.

    Args:
        seconds: that a conversation may take.
        num_bytes: memory of the process. macOS does not enforce it; there only time is bounded.
        max_bytes: of the text that comes out, as JSON.
    """

    def __init__(
        self,
        seconds: float = TIMEOUT_SECONDS,
        num_bytes: int = MAX_MEMORY_BYTES,
        max_bytes: int = 2**25,
    ) -> None:
        self.process = SandboxedProcess(PROGRAM, [str(num_bytes)], seconds, max_bytes)

    def render(self, template: str, messages: Sequence[Mapping[str, Any]], **rest: Any) -> str:
        """As `chat_template.render_chat`, within the bounds.

        Raises:
            ValueError: the template refuses the conversation, or takes too much time or memory.
            TypeError: the conversation is more than plain data.
        """
        payload = {"template": template, "messages": list(messages), "rest": rest}
        text: str = self.process.request(payload)["text"]
        return text


def render_sandboxed(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """A conversation as text, in the process that all tokenizers share.

    Arguments and errors as `ChatTemplateSandbox.render`. The process starts with the first one.
    """
    return default_sandbox().render(template, messages, **variables)


@cache
def default_sandbox() -> ChatTemplateSandbox:
    """The process of `render_sandboxed`."""
    return ChatTemplateSandbox()
