"""Sandboxed rendering of chat templates, with time and memory limits.

A template is an untrusted program. Jinja's sandbox blocks access to files and Python internals, but
prevents neither endless loops nor memory exhaustion: nested `{% for i in range(99999) %}` suffice.
The sandboxed process runs `chat_template_main.py`, without the rest of this package.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .sandbox import SandboxedProcess

TIMEOUT_SECONDS = 2.0  # per conversation
MAX_MEMORY_BYTES = 2**29

PROGRAM = Path(__file__).with_name("chat_template_main.py")


class ChatTemplateSandbox:
    """Renders conversations. Thread-safe; calls are serialized.

    Args:
        seconds: time limit per conversation.
        num_bytes: memory limit of the process; not enforced on macOS.
        max_bytes: size limit of the rendered text, as JSON.
    """

    def __init__(
        self,
        seconds: float = TIMEOUT_SECONDS,
        num_bytes: int = MAX_MEMORY_BYTES,
        max_bytes: int = 2**25,
    ) -> None:
        self.process = SandboxedProcess(PROGRAM, [str(num_bytes)], seconds, max_bytes)

    def render(self, template: str, messages: Sequence[Mapping[str, Any]], **rest: Any) -> str:
        """Same as `chat_template_main.render_chat`, within the limits.

        Raises:
            ValueError: the template rejects the conversation or exceeds the limits.
            TypeError: the conversation is not JSON-serializable.
        """
        payload = {"template": template, "messages": list(messages), "rest": rest}
        text: str = self.process.request(payload)["text"]
        return text


def render_sandboxed(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """Renders a conversation in the process shared by all tokenizers.

    See `ChatTemplateSandbox.render` for arguments and errors.
    """
    return default_sandbox().render(template, messages, **variables)


@cache
def default_sandbox() -> ChatTemplateSandbox:
    """Shared sandbox for `render_sandboxed`."""
    return ChatTemplateSandbox()
