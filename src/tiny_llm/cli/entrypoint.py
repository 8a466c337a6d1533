"""`tiny-llm COMMAND`: entry point of the installed package.

Imports a command's module only when that command runs, to keep startup fast.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType

from ..errors import UserError
from .parsing.command import CommandParser, run_command

COMMANDS = {
    "main": "generate text for one prompt and stream it",
    "chat": "chat in the terminal",
    "batch": "run sixteen prompts with continuous batching and a live view",
    "serve": "serve the OpenAI and Anthropic APIs over HTTP",
    "bench": "measure throughput on synthetic prompts and print a JSON summary",
    "models": "list the models on this machine",
    "check": "check the installation and suggest fixes",
}
SHELLS = ("bash", "zsh", "tcsh")
MODEL_FLAGS = ("--model", "--draft-model")
MODEL_COMPLETION = {  # for shtab: models on this machine, and files
    "bash": "_tiny_llm_models",
    "zsh": "{compadd -- \\$(tiny-llm models --names); _files}",
    "tcsh": "`tiny-llm models --names`",
    "preamble": {
        "bash": '_tiny_llm_models() { compgen -f -W "$(tiny-llm models --names)" -- "$1"; }\n'
    },
}


def main(argv: Sequence[str] | None = None, prog: str = "tiny-llm") -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        name = arguments.pop(0)
        status: int = command_module(name).main(arguments, f"{prog} {name}")
        return status
    return run_command(prog, lambda: _without_command(arguments, prog))


def command_module(command: str) -> ModuleType:
    """Module with a command's `main(argv, prog)` and `make_parser(prog)`."""
    module: ModuleType
    match command:
        case "main":
            from . import main as module
        case "chat":
            from . import chat as module
        case "batch":
            from . import batch as module
        case "serve":
            from . import serve as module
        case "bench":
            from . import bench as module
        case "models":
            from . import models as module
        case _:
            from . import check_installation as module
    return module


def completion(shell: str) -> str:
    """Shell completion script for commands and flags; `shell` is one of `SHELLS`."""
    import shtab

    root = _root_parser("tiny-llm")
    commands = root.add_subparsers(parser_class=argparse.ArgumentParser)
    for name, text in COMMANDS.items():
        parser = command_module(name).make_parser(f"tiny-llm {name}")
        for action in parser._actions:
            if {*MODEL_FLAGS} & {*action.option_strings}:
                action.complete = MODEL_COMPLETION
        commands.add_parser(name, help=text, parents=[parser], add_help=False)
    script: str = shtab.complete(root, shell)
    return script


def _without_command(argv: Sequence[str], prog: str) -> int:
    parser = _root_parser(prog)
    parser.add_argument("command", metavar="COMMAND", nargs="?", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.print_completion is not None:
        print(completion(args.print_completion))
        return 0
    problem = "no command given" if args.command is None else f"unknown command {args.command}"
    raise UserError(f"{problem}; choose one of {', '.join(COMMANDS)} (see --help).")


def _root_parser(prog: str) -> CommandParser:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    parser = CommandParser(
        prog,
        "LLM inference on MLX: a serving engine, and a course that builds it.\n\n"
        f"commands:\n{commands}\n\n`{prog} COMMAND --help` lists a command's flags.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tiny-llm {version('tiny-llm')}")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        metavar="SHELL",
        help="print the shell completion script for bash, zsh or tcsh",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
