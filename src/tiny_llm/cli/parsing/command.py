"""What all commands share: how they parse, how they fail, and where they print.

Standard output carries the answer and its statistics; everything said on the way (which model,
a progress bar, an error) goes to standard error.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rich.console import Console

from ...errors import TaskNotImplemented, UserError
from .learner_tree import exec_in_learner_tree, find_learner_tree, is_running_mine

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # as shells report a command ended by Ctrl-C

console = Console(stderr=True, highlight=False, emoji=False)


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` whose errors are one sentence, without the usage in front of it.

    Args:
        prog: how the command was called, for its help.
        description: what it does.
        module: the command's, which --solution mine runs once more; None without that flag.
        formatter_class: lays out the help.
    """

    def __init__(
        self,
        prog: str,
        description: str | None,
        module: str | None = None,
        formatter_class: Any = argparse.ArgumentDefaultsHelpFormatter,
    ):
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=formatter_class,
            allow_abbrev=False,
        )
        self._module = module

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parses; with --solution mine the command goes on in a process of the learner's code.

        Without --solution that is done if there is a learner's tree, and one line says so.
        """
        parsed = super().parse_args(args, namespace)
        if self._module is None:
            return parsed
        if has_rank_environment():
            if parsed.solution == "mine":
                raise UserError("--solution mine runs in one process; start it without a launcher.")
            parsed.solution = parsed.solution or "tiny_llm"
        if parsed.solution is None:
            tree = find_learner_tree()
            parsed.solution = "tiny_llm" if tree is None else "mine"
            if tree is not None and not is_running_mine(tree):
                console.print(
                    f"solution: mine (your tree in {tree}; --solution ref runs ours)",
                    soft_wrap=True,
                    markup=False,
                )
        if parsed.solution == "mine":
            exec_in_learner_tree(self._module, args)
        return parsed

    def error(self, message: str) -> NoReturn:
        """Leaves through `run_command`, as every other user's mistake does."""
        raise UserError(f"{message} (--help lists the flags).")


def has_rank_environment() -> bool:
    """Whether this process may be a rank: `mlx.launch` or `mpirun` has started it."""
    return "MLX_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ


def _join_ranks() -> None:
    """Connects the ranks that a launcher has started. Returns in rank 0 alone, or if there is one.

    Raises:
        UserError: they cannot be connected.
    """
    # Imported here, because a process that is alone needs nothing of it.
    from ...engine.execution.tp_worker import serve_launched
    from ...models.parallel.default_group import init_default_group
    from ...models.parallel.launcher import is_launched, is_rank_0

    if is_launched():
        if not is_rank_0():
            serve_launched()
        init_default_group()


def _open_closed_streams() -> None:
    """Opens /dev/null for each standard stream that the parent process has closed.

    Otherwise a model's file or a socket takes its descriptor, and MLX opens no file as number 0.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
            setattr(sys, name, os.fdopen(null, mode, encoding="utf-8"))


def run_command(prog: str, command: Callable[[], int]) -> int:
    """Runs a command's body and turns its ways to fail into an exit status.

    Of several ranks, all run the same command: rank 0 its body, the others what rank 0 says.

    Returns:
        The body's status; 2 after a `UserError` or a task of the course that is still to be
        written, printed as one line; 130 after Ctrl-C.
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
        print(f"{prog}: {error} (--solution ref runs ours)", file=sys.stderr)
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python would complain again when it flushes
        # standard output at exit, so give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
