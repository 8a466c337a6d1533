"""A conversation in the terminal.

/reset forgets the conversation, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer.
"""

import argparse
import contextlib
import sys
from collections.abc import Sequence

from ..errors import UserError
from .arguments import add_model_arguments, add_sampling_arguments
from .backend import Backend, open_backend
from .command import CommandParser, console, run_command

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
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    return parser


class Conversation:
    """What was said so far, and how the next turn is answered.

    Args:
        backend: the model.
        system_prompt: how the assistant shall behave, or None.
    """

    def __init__(self, backend: Backend, system_prompt: str | None = None):
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
            UserError: the conversation is too long for the model; this turn is then forgotten.
        """
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            for response in self._backend.stream(self._backend.encode_chat(self.messages)):
                answer += response.text
                print(response.text, end="", flush=True)
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
    conversation = Conversation(open_backend(args), args.system_prompt)
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
                conversation.ask(line)
            except UserError as error:
                console.print(f"{error} /reset starts afresh.", markup=False)


if __name__ == "__main__":
    sys.exit(main())
