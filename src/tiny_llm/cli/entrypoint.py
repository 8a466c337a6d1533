"""`tiny-llm COMMAND`: the commands of an installed package under one name.

A command's module is imported when that command runs, so that none of them slows the others down.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType

from ..errors import UserError
from .parsing.command import CommandParser, run_command

COMMANDS = {
    "main": "answer one prompt, streaming",
    "chat": "a conversation in the terminal",
    "batch": "sixteen prompts through continuous batching, with a live view",
    "serve": "the HTTP server: OpenAI's and Anthropic's protocols",
    "bench": "throughput on synthetic token ids; ends in one line of JSON",
    "check": "what works on this machine, what does not, and the fix",
}
SHELLS = ("bash", "zsh", "tcsh")


def main(argv: Sequence[str] | None = None, prog: str = "tiny-llm") -> int:
    """Runs the command that the first argument names, and returns its exit status.

    Args:
        argv: the arguments; those of the process if None.
        prog: how the program was called, for messages.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if given and given[0] in COMMANDS:
        name, *arguments = given
        status: int = command_module(name).main(arguments, f"{prog} {name}")
        return status
    return run_command(prog, lambda: _without_command(given, prog))


def command_module(command: str) -> ModuleType:
    """The module with a command's `main(argv, prog)` and `make_parser(prog)`."""
    match command:
        case "main":
            from . import main

            return main
        case "chat":
            from . import chat

            return chat
        case "batch":
            from . import batch

            return batch
        case "serve":
            from . import serve

            return serve
        case "bench":
            from . import bench

            return bench
        case _:
            from . import check_installation

            return check_installation


def completion(shell: str) -> str:
    """A script that completes commands and flags in a shell.

    Args:
        shell: one of `SHELLS`.
    """
    import shtab

    root = _root_parser("tiny-llm")
    commands = root.add_subparsers(parser_class=argparse.ArgumentParser)
    for name, text in COMMANDS.items():
        parser = command_module(name).make_parser(f"tiny-llm {name}")
        commands.add_parser(name, help=text, parents=[parser], add_help=False)
    script: str = shtab.complete(root, shell)
    return script


def _without_command(argv: Sequence[str], prog: str) -> int:
    """--help, --version, --print-completion; anything else is refused."""
    parser = _root_parser(prog)
    parser.add_argument("command", metavar="COMMAND", nargs="?", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.print_completion is not None:
        if args.print_completion not in SHELLS:
            raise UserError(
                f"--print-completion '{args.print_completion}' is unknown; give bash, zsh or tcsh."
            )
        print(completion(args.print_completion))
        return 0
    problem = "no command was given"
    if args.command is not None:
        problem = f"there is no command '{args.command}'"
    raise UserError(f"{problem}; give one of {', '.join(COMMANDS)} (--help lists them).")


def _root_parser(prog: str) -> CommandParser:
    width = max(map(len, COMMANDS))
    listed = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    parser = CommandParser(
        prog,
        "Qwen3 on MLX: a course that builds an LLM engine, and the engine.\n\n"
        f"commands:\n{listed}\n\n`{prog} COMMAND --help` lists a command's flags.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tiny-llm {version('tiny-llm')}")
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        help="print a script that completes commands and flags in bash, zsh or tcsh",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
