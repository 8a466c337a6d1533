"""Installation check with suggested fixes, or a model's memory table."""

import argparse
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import mlx.core as mx
from packaging.requirements import Requirement
from rich.filesize import decimal
from rich.table import Table

from .. import kernels
from ..engine.engine_args import EngineArgs
from ..engine.factory import resolve_task
from ..errors import UserError
from ..models import BUNDLED_MODELS, SHORT_NAMES, find_in_cache
from ..models.checkpoint.safe_io import ModelError
from ..models.hub import check_model_files, find_config, weight_bytes
from .backends.local import set_device
from .memory_table import DecodeSpeed, estimate_memory, print_memory_table
from .parsing.arguments import add_engine_arguments, add_flag, flag_name, given_options, is_set
from .parsing.command import CommandParser, SafeConsole, console, run_command

MARKS = {True: "[green]ok[/]", False: "[red]failed[/]", None: "[yellow]optional[/]"}


@dataclass(frozen=True)
class CheckResult:
    """Result of one check, printed as a row of the table."""

    name: str
    ok: bool | None  # True if it works; False if required but broken; None if optional and missing
    found: str
    fix: str = ""


def main(argv: Sequence[str] | None = None, prog: str = "check-installation") -> int:
    """Exit status: 0; 1 if a check fails or the model does not fit; 2 for a user error."""
    return run_command(prog, lambda: _report(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, __doc__)
    add_flag(
        parser,
        "--model NAME",
        "print this model's memory table: weights, KV cache, longest prompt and estimated "
        "speed; only its config is downloaded. The other flags are the same as for `serve`",
    )
    add_engine_arguments(parser, "check")
    return parser


def run_checks() -> Iterator[CheckResult]:
    yield _python()
    yield _package("mlx")
    yield _package("mlx-lm")
    yield _device()
    yield _compiler()
    yield _extension()
    yield from _metal_kernels()
    yield _torch()
    for name, folder in BUNDLED_MODELS.items():
        yield _checkpoint(name, folder, "bundled", "reinstall tiny-llm")
    for name, hub_id in SHORT_NAMES.items():
        cached = find_in_cache(hub_id)
        if cached is None:
            fix = f"`pdm run main --model {name}` downloads it"
            yield CheckResult(f"model {name}", None, "not in the local hub cache", fix)
        else:
            fix = f"`hf download {hub_id} --force-download`"
            yield _checkpoint(name, cached, str(cached), fix)


def _report(args: argparse.Namespace) -> int:
    if args.model is not None:
        return _report_model(args)
    given = [flag_name(name) for name in vars(args) if is_set(args, name)]
    if given:
        raise UserError(f"{given[0]} requires --model.")
    table = Table("component", "", "found", "fix", title=f"tiny-llm {version('tiny-llm')}")
    is_complete = True
    for result in run_checks():
        table.add_row(result.name, MARKS[result.ok], result.found, "" if result.ok else result.fix)
        is_complete &= result.ok is not False
    SafeConsole().print(table)
    return 0 if is_complete else 1


def _report_model(args: argparse.Namespace) -> int:
    set_device(args.device)
    models = {"model": find_config(args.model, console)}
    if args.draft_model is not None:
        models["draft_model"] = find_config(args.draft_model, console)
    options = EngineArgs(**{**given_options(args, EngineArgs), **models})
    estimates = estimate_memory(options)
    can_measure = kernels.is_built() and kernels.runs_on_default_device()
    speed = None
    is_generating = resolve_task(options.task, options.model) == "generate"
    if is_generating and can_measure and estimates["auto"].weights_fit:
        speed = DecodeSpeed(models["model"])
    print_memory_table(SafeConsole(), args.model, estimates, speed)
    return 0 if estimates["auto"].weights_fit else 1


def _python() -> CheckResult:
    supported, found = (3, 11) <= sys.version_info[:2] <= (3, 15), platform.python_version()
    return CheckResult("Python", supported, found, "install Python 3.11 to 3.15")


def _package(name: str) -> CheckResult:
    pins = [
        requirement.specifier
        for requirement in map(Requirement, requires("tiny-llm") or [])
        if requirement.name == name
        and (requirement.marker is None or requirement.marker.evaluate())
    ]
    fix = "`pdm install` installs the pinned version"
    try:
        found = version(name)
    except PackageNotFoundError:
        return CheckResult(name, False, "not installed", fix)
    return CheckResult(name, all(found in pin for pin in pins), found, fix)


def _device() -> CheckResult:
    try:
        mx.eval(mx.ones(4) + 1)
    except RuntimeError as error:
        return CheckResult("device", False, f"MLX failed: {error}", "`pdm install` reinstalls MLX")
    kind = "cpu" if kernels.computes_on_cpu() else "gpu"
    name = mx.device_info().get("device_name", platform.processor() or platform.machine())
    if kind == "gpu" and mx.default_device() == mx.cpu:
        name = "Metal emulator on the CPU"
    return CheckResult("device", True, f"{kind}: {name}")


def _compiler() -> CheckResult:
    fix = "macOS: `xcode-select --install`; Debian and Ubuntu: `apt install g++`"
    for command in ("c++", "g++", "clang++"):
        if path := shutil.which(command):
            return CheckResult("C++ compiler", True, _first_line([path, "--version"]))
    return CheckResult("C++ compiler", None, "not found; Week 1 does not need it", fix)


def _extension() -> CheckResult:
    try:
        module = kernels.extension()
    except UserError as error:
        fix = "`pdm run build-ext`; Week 1 does not need it"
        return CheckResult("extension", None, str(error), fix)
    return CheckResult("extension", True, f"built: {', '.join(module.__all__)}")


def _metal_kernels() -> Iterator[CheckResult]:
    """Yields a row per Metal file after compiling it; without a GPU, one row."""
    if kernels.computes_on_cpu() or not kernels.runs_on_default_device():
        found = f"not supported on {platform.system()}"
        yield CheckResult("Metal kernels", None, found, "no action needed")
        return
    metal = kernels.extension().metal
    for library in metal.library_states():
        metal.compile_file(library.file)
    for library in metal.library_states():
        found = library.state + (f": {library.message}" if library.message else "")
        fix = "the operation falls back to the CPU; please report this message"
        yield CheckResult(f"{library.file}.metal", library.state == "compiled", found, fix)


def _torch() -> CheckResult:
    if importlib.util.find_spec("torch") is None:
        fix = "`pdm run install-torch` (for parity tests and training)"
        return CheckResult("torch", None, "not installed", fix)
    return CheckResult("torch", True, version("torch"))


def _checkpoint(name: str, folder: Path, where: str, fix: str) -> CheckResult:
    try:
        check_model_files(folder)
    except ModelError as error:
        return CheckResult(f"model {name}", False, f"corrupt: {error}", fix)
    return CheckResult(f"model {name}", True, f"{decimal(weight_bytes(folder))}, {where}")


def _first_line(command: list[str]) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (result.stdout or result.stderr).strip().split("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
