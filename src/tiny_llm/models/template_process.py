"""Chat templates in a process of their own, with bounds on time and memory.

A template is a program that came with the weights. Jinja's sandbox keeps it from files and from
Python's insides, but not from running for ever or taking all memory: `{% for i in range(99999) %}`
inside itself is enough. The process runs `chat_template.py` and nothing else of this package.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .bounded_process import BoundedProcess

SECONDS = 2.0  # for a conversation
MAX_BYTES = 2**29  # of the process

PROGRAM = Path(__file__).with_name("chat_template.py")


class TemplateProcess:
    """Renders conversations. May be used by several threads, which wait for each other.

    Args:
        seconds: that a conversation may take.
        num_bytes: memory of the process. macOS does not enforce it; there only time is bounded.
        max_bytes: of the text that comes out, as JSON.
    """

    def __init__(
        self, seconds: float = SECONDS, num_bytes: int = MAX_BYTES, max_bytes: int = 2**25
    ) -> None:
        self.process = BoundedProcess(PROGRAM, [str(num_bytes)], seconds, max_bytes)

    def render(self, template: str, messages: Sequence[Mapping[str, Any]], **rest: Any) -> str:
        """As `chat_template.render_chat`, within the bounds.

        Raises:
            ValueError: the template refuses the conversation, or takes too much time or memory.
            TypeError: the conversation is more than plain data.
        """
        question = {"template": template, "messages": list(messages), "rest": rest}
        text: str = self.process.ask(question)["text"]
        return text


def render_bounded(template: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """A conversation as text, in the process that all tokenizers share.

    Arguments and errors as `TemplateProcess.render`. The process starts with the first one.
    """
    return shared_process().render(template, messages, **variables)


@cache
def shared_process() -> TemplateProcess:
    """The process of `render_bounded`."""
    return TemplateProcess()
