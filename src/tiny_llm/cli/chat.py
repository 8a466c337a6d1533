"""A conversation in the terminal.

/reset forgets the conversation, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer. With --url the
model is behind an OpenAI server.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence

from ..errors import UserError
from .backends.backend import Backend, open_backend
from .backends.remote import RemoteBackend, add_remote_arguments, check_remote_arguments
from .parsing.arguments import add_model_arguments, add_sampling_arguments
from .parsing.command import CommandParser, console, run_command
from .parsing.input_text import reconfigure_as_utf8, validate_utf8

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  (importing it gives input() its history and line editing)

HELP = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
THINK_END = "</think>"


def main(argv: Sequence[str] | None = None, prog: str = "chat") -> int:
    """Runs the command; the exit status is 0, or 2 if the flags ask for what cannot be."""
    return run_command(prog, lambda: _converse(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    """The command's flags."""
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.chat")
    parser.add_argument("--system-prompt", metavar="TEXT", help="how the assistant shall behave")
    add_remote_arguments(parser)
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    return parser


class ChatSession:
    """What was said so far, and how the next turn is answered.

    Args:
        backend: the model, in this process or behind a URL.
        system_prompt: how the assistant shall behave, or None.
    """

    def __init__(self, backend: Backend | RemoteBackend, system_prompt: str | None = None):
        self._backend = backend
        self._system_prompt = system_prompt
        self.reset()

    def reset(self) -> None:
        """Forgets everything but the system prompt."""
        self.messages: list[dict[str, str]] = []
        if self._system_prompt is not None:
            self.messages.append({"role": "system", "content": self._system_prompt})

    def ask(self, text: str) -> None:
        """Prints the answer to a turn as it comes, and remembers both.

        Ctrl-C stops the answer; what was said until then stays in the conversation.

        Raises:
            UserError: the conversation is too long for the model, or the server refuses it; this
                turn is then forgotten.
        """
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            for piece in self._backend.stream_chat(self.messages):
                answer += piece
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            console.print(" [stopped]", markup=False, end="")
        except UserError:
            self.messages.pop()
            raise
        print()
        # Thoughts are not part of what was said: templates drop them from earlier turns.
        said = answer.rpartition(THINK_END)[2].strip()
        self.messages.append({"role": "assistant", "content": said})


def _converse(args: argparse.Namespace) -> int:
    check_remote_arguments(args)
    backend = open_backend(args) if args.url is None else RemoteBackend(args)
    reconfigure_as_utf8(sys.stdin)
    hint = " /reset starts afresh." if args.url is None else ""
    conversation = ChatSession(backend, args.system_prompt)
    console.print(HELP, style="dim")
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            console.print("\n" + HELP, style="dim")
            continue
        if line == "/exit":
            return 0
        if line == "/reset":
            conversation.reset()
            console.print("the conversation is forgotten", style="dim")
        elif line.startswith("/"):
            console.print(f"unknown command {line}; {HELP}", markup=False)
        elif line:
            try:
                conversation.ask(validate_utf8("the line", line))
            except UserError as error:
                console.print(f"{error}{hint}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
