"""Common base of the commands: parser, exit statuses, console.

Generated text and statistics go to standard output; everything else (the model's name, progress
bars, errors) goes to standard error.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rich.console import Console

from ...errors import TaskNotImplemented, UserError
from .learner_tree import exec_in_learner_tree, find_learner_tree, is_running_mine, unwritten_files

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in shells after Ctrl-C

console = Console(stderr=True, highlight=False, emoji=False)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default value to a flag's help text."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default not in (None, False, [])
        return super()._get_help_string(action) if has_default else action.help


class CommandParser(argparse.ArgumentParser):
    """`ArgumentParser` that reports errors in one sentence, without usage.

    Args:
        module: module to re-execute for --solution mine; None for commands without that flag.
        skips_unwritten: whether --solution mine uses the reference solution for the learner's
            modules with an unwritten task.
        own_folder: folder of the learner's package to which `skips_unwritten` does not apply, such
            as "agent/": its unwritten tasks are errors.
    """

    def __init__(
        self,
        prog: str,
        description: str | None,
        module: str | None = None,
        formatter_class: Any = HelpFormatter,
        skips_unwritten: bool = False,
        own_folder: str | None = None,
    ):
        super().__init__(
            prog=prog, description=description, formatter_class=formatter_class, allow_abbrev=False
        )
        self._module = module
        self._skips_unwritten = skips_unwritten
        self._own_folder = own_folder

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parses the flags; for --solution mine, re-executes in the learner's tree.

        Resolves --solution to ref, mine or mlx: tiny_llm, the default, is the learner's tree if it
        exists, which a message says, else ref.
        """
        parsed = super().parse_args(args, namespace)
        if self._module is None:
            return parsed
        if parsed.solution == "tiny_llm_ref" or (
            parsed.solution is None and has_rank_environment()
        ):
            parsed.solution = "ref"
        if parsed.solution in (None, "tiny_llm"):
            tree = find_learner_tree()
            parsed.solution = "ref" if tree is None else "mine"
            if tree is not None and not is_running_mine(tree):
                console.print(
                    f"solution: mine (your tree in {tree}; --solution ref runs the reference)",
                    soft_wrap=True,
                    markup=False,
                )
        if parsed.solution == "mine":
            if has_rank_environment():
                raise UserError(
                    "--solution mine runs in a single process; start it without a launcher."
                )
            exec_in_learner_tree(self._module, args, self._report_unwritten_files())
        return parsed

    def _report_unwritten_files(self) -> list[str]:
        """Files with unwritten tasks, to import from the reference; prints the names."""
        tree = find_learner_tree()
        if not self._skips_unwritten or tree is None or is_running_mine(tree):
            return []
        skipped = [
            name
            for name in unwritten_files(tree)
            if self._own_folder is None or not name.startswith(self._own_folder)
        ]
        if skipped:
            console.print(
                f"solution: mine, with reference files for unwritten tasks: {', '.join(skipped)}",
                soft_wrap=True,
                markup=False,
            )
        return skipped

    def error(self, message: str) -> NoReturn:
        """Raises a `UserError`, which `run_command` reports."""
        raise UserError(f"{message} (see --help).")


def has_rank_environment() -> bool:
    """Whether `mlx.launch` or `mpirun` started this process."""
    return "MLX_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ


def _join_ranks() -> None:
    """Connects the launched ranks. Returns only on rank 0 or in a single process."""
    # Imported here to keep single-process startup fast.
    from ...engine.execution.tp_worker import serve_launched
    from ...models.parallel.default_group import init_default_group
    from ...models.parallel.launcher import is_launched, is_rank_0

    if is_launched():
        if not is_rank_0():
            serve_launched()
        init_default_group()


def _open_closed_streams() -> None:
    """Opens /dev/null for closed standard streams.

    MLX fails if another file gets descriptor 0.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest free descriptor is the closed stream's.
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8"))


def run_command(prog: str, command: Callable[[], int]) -> int:
    """Runs a command's body and maps its exceptions to an exit status.

    Under a launcher, rank 0 runs the body and the other ranks run the worker loop.

    Returns:
        The body's status; 2 after a `UserError` or an unimplemented task of the course, printed
        as one line; 130 after Ctrl-C; 0 if the reader of standard output has exited.
    """
    _open_closed_streams()
    try:
        if has_rank_environment():
            _join_ranks()
        return command()
    except UserError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return EXIT_USER_ERROR
    except TaskNotImplemented as error:
        print(f"{prog}: {error} (--solution ref runs the reference)", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) closed the pipe; the flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
