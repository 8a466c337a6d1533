"""Common base of the commands: parser, exit statuses, console, text in and out.

Generated text and statistics go to standard output; everything else (the model's name, progress
bars, errors) goes to standard error. `--solution mine` re-executes a command with the learner's
tiny_llm.
"""

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ...errors import TaskNotImplemented, UserError, escape_control_characters

TREE_VARIABLE = "TINY_LLM_MINE"  # learner's source tree; default `mine/` in the current directory
# Files to import from the reference solution instead of the learner's tree.
SKIP_VARIABLE = "TINY_LLM_SKIP"


def find_learner_tree() -> Path | None:
    tree = _tree_path()
    return tree if (tree / "site" / "sitecustomize.py").is_file() else None


def is_running_mine(tree: Path) -> bool:
    return sys.modules["tiny_llm"].__file__ == str(tree / "src" / "tiny_llm" / "__init__.py")


def unwritten_files(tree: Path) -> list[str]:
    """Files with unwritten tasks to replace, relative to the learner's package.

    Files that catch `TaskNotImplemented` run without their tasks. The reference's would call the
    learner's C++, whose tasks may be unwritten, too.
    """
    package = tree / "src" / "tiny_llm"
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "raise TaskNotImplemented(" in text and "except TaskNotImplemented" not in text:
            found.append(path.relative_to(package).as_posix())
    return found


def replacement_notice(names: Sequence[str]) -> str:
    """Message about files that the reference replaces; counts more than three."""
    shown = ", ".join(names) if len(names) <= 3 else f"{len(names)} files, see `pdm run progress`"
    return f"solution: mine, with reference files for unwritten tasks: {shown}"


def exec_in_learner_tree(
    module: str, argv: Sequence[str] | None, skipped: Sequence[str] = ()
) -> None:
    """Re-executes the process with the learner's tiny_llm, unless already done.

    Args:
        module: the command's module, e.g. "tiny_llm.cli.main".
        skipped: files to import from the reference solution; see `unwritten_files`.
    """
    tree = find_learner_tree()
    if tree is None:
        raise UserError(
            f"--solution mine requires a learner's tree, but {_tree_path()} does not contain one; "
            "create it with `pdm run start-course`."
        )
    if is_running_mine(tree):
        return
    paths = [str(tree / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), TREE_VARIABLE: str(tree)}
    environment[SKIP_VARIABLE] = os.pathsep.join(skipped)
    command = [sys.executable, "-m", module, *(sys.argv[1:] if argv is None else argv)]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


def _tree_path() -> Path:
    return Path(os.environ.get(TREE_VARIABLE, "mine")).resolve()


EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as in shells after Ctrl-C


class SafeConsole(Console):
    """Console that escapes control characters in texts of models, servers and checkpoints."""

    def __init__(self, stderr: bool = False):
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_control_characters(text), style, control)


console = SafeConsole(stderr=True)


class SafeFormatter(logging.Formatter):
    """Log formatter that escapes control characters; a message stays in one line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return escape_control_characters(super().formatMessage(record), one_line=True)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return escape_control_characters(super().formatException(ei))


def print_text(text: str, end: str = "\n") -> None:
    """Prints a model's text to standard output, unchanged unless that is a terminal."""
    if sys.stdout.isatty():
        text = escape_control_characters(text)
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end, flush=True)


def read_prompt(argument: str) -> str:
    """Resolves `--prompt`: all of standard input for "-", else the argument."""
    if argument != "-":
        return validate_utf8("the prompt", argument)
    stream = sys.stdin
    # Read raw bytes, because the locale's encoding may not be UTF-8.
    data = stream.buffer.read() if hasattr(stream, "buffer") else stream.read().encode()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the prompt is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}; convert "
            "it, e.g. with iconv."
        ) from error


def validate_utf8(what: str, text: str) -> str:
    """Returns the text; rejects surrogates, which stand for non-UTF-8 bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} is not UTF-8 at character {error.start}; convert it, e.g. with iconv."
        ) from error
    return text


def reconfigure_as_utf8(stream: TextIO) -> None:
    """Sets a stream's encoding to UTF-8; invalid bytes become surrogates."""
    if isinstance(stream, io.TextIOWrapper):  # not a StringIO, which tests use
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds the default value to a flag's help text."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_named = "default: " in (action.help or "")
        has_default = action.default not in (None, False, []) and not is_named
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
        """Files with unwritten tasks, to import from the reference; prints a notice."""
        tree = find_learner_tree()
        if not self._skips_unwritten or tree is None or is_running_mine(tree):
            return []
        skipped = [
            name
            for name in unwritten_files(tree)
            if self._own_folder is None or not name.startswith(self._own_folder)
        ]
        if skipped:
            console.print(replacement_notice(skipped), soft_wrap=True, markup=False)
        return skipped

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see --help).")


def has_rank_environment() -> bool:
    """Whether `mlx.launch` or `mpirun` started this process."""
    return "MLX_RANK" in os.environ or "OMPI_COMM_WORLD_RANK" in os.environ


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

    Under a launcher, rank 0 runs the body, and the other ranks execute its calls.

    Returns:
        The body's status; 2 after a `UserError`, a full disk or an unimplemented task of the
        course, printed as one line; 130 after Ctrl-C; 0 if the reader of standard output has
        exited.
    """
    _open_closed_streams()
    if logging.lastResort is not None:  # used by commands without a log configuration
        logging.lastResort.setFormatter(SafeFormatter())
    try:
        if has_rank_environment():
            # Imported here to keep single-process startup fast.
            from ...models.parallel.launch import join_launched_ranks

            join_launched_ranks()
        try:
            return command()
        finally:
            sys.stdout.flush()
    except UserError as error:
        _print_error(f"{prog}: {error}")
        return EXIT_USER_ERROR
    except TaskNotImplemented as error:
        _print_error(f"{prog}: {error} (--solution ref runs the reference)")
        return EXIT_USER_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()  # the reader (`| head`) closed the pipe
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _discard_stdout()
        _print_error(f"{prog}: cannot write the output: {error.strerror}.")
        return EXIT_USER_ERROR


def _print_error(message: str) -> None:
    print(escape_control_characters(message), file=sys.stderr)


def _discard_stdout() -> None:
    """Redirects standard output to /dev/null, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
