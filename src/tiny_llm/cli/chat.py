"""Interactive chat in the terminal.

/reset clears the history, /exit (or Ctrl-D) quits, Ctrl-C stops generation. With --url, the model
runs on an OpenAI-compatible server.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence

from ..engine.outputs.output_parser import without_reasoning
from ..errors import UserError
from .backends.local import Backend, open_backend
from .backends.remote import RemoteBackend, add_remote_arguments, check_remote_arguments
from .parsing.arguments import add_flag, add_model_arguments, add_sampling_arguments
from .parsing.command import (
    CommandParser,
    console,
    print_text,
    reconfigure_as_utf8,
    run_command,
    validate_utf8,
)

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  (enables history and line editing in input())

HELP = "/reset clears the history, /exit or Ctrl-D quits, Ctrl-C stops generation"


def main(argv: Sequence[str] | None = None, prog: str = "chat") -> int:
    return run_command(prog, lambda: _converse(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.chat")
    add_flag(parser, "--system-prompt TEXT", "system message of the chat")
    add_remote_arguments(parser)
    add_model_arguments(parser, "chat")
    add_sampling_arguments(parser)
    return parser


class ChatSession:
    """Message history of a chat."""

    def __init__(self, backend: Backend | RemoteBackend, system_prompt: str | None = None):
        self._backend = backend
        self._tokenizer = backend.checkpoint.tokenizer if isinstance(backend, Backend) else None
        self._system_prompt = system_prompt
        self.reset()

    def reset(self) -> None:
        self.messages: list[dict[str, str]] = []
        if self._system_prompt is not None:
            self.messages.append({"role": "system", "content": self._system_prompt})

    def ask(self, text: str) -> None:
        """Streams the reply to standard output; adds the turn to the history.

        Ctrl-C stops generation; the partial reply remains in the history.

        Raises:
            UserError: the context is exceeded or the server failed; the turn is dropped.
        """
        self.messages.append({"role": "user", "content": text})
        reply = ""
        try:
            for delta in self._backend.stream_chat(self.messages):
                reply += delta
                print_text(delta, end="")
        except KeyboardInterrupt:
            console.print(" [stopped]", markup=False, end="")
        except UserError:
            self.messages.pop()
            raise
        print()
        # Drop the reasoning, as chat templates do in earlier turns.
        reply = without_reasoning(reply, self._tokenizer)
        self.messages.append({"role": "assistant", "content": reply})


def _converse(args: argparse.Namespace) -> int:
    check_remote_arguments(args)
    backend = open_backend(args) if args.url is None else RemoteBackend(args)
    reconfigure_as_utf8(sys.stdin)
    hint = " /reset clears the history." if args.url is None else ""
    session = ChatSession(backend, args.system_prompt)
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
            session.reset()
            console.print("history cleared", style="dim")
        elif line.startswith("/"):
            console.print(f"unknown command {line}; {HELP}", markup=False)
        elif line:
            try:
                session.ask(validate_utf8("the message", line))
            except UserError as error:
                console.print(f"{error}{hint}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
