"""`pdm run build-ext`: builds the C++ extension in place, or removes it (`pdm run clean-ext`).

Installing the package builds the solution's too. This command is for after a change to the sources:
only what changed is compiled again, with the tools of the project's own environment. If there is a
learner's tree it builds that one's; --solution mine or ref chooses.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tools.course.build import build_tree, built_module
from tools.course.solution_flag import add_solution_argument, selected_tree
from tools.course.tree import ROOT


def main() -> int:
    """Exit status 0 if the extension is there (or, with --clean, gone)."""
    parser = argparse.ArgumentParser(prog="build-ext", description=__doc__)
    parser.add_argument("--clean", action="store_true", help="remove what was built")
    add_solution_argument(parser)
    args = parser.parse_args()
    tree = selected_tree(parser, args.solution)
    if args.clean:
        return clean(tree)
    if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        print(
            "build-ext: no C++ compiler found; on macOS run `xcode-select --install`, on Debian "
            "and Ubuntu `apt install g++`.",
            file=sys.stderr,
        )
        return 2
    output = install_solution() if tree is None else build_tree(tree)
    if output is not None:
        print(output, file=sys.stderr)
        print("build-ext: the extension did not build; see above.", file=sys.stderr)
        return 1
    print(f"built {built_modules()[0] if tree is None else built_module(tree)}")
    return 0


def install_solution() -> str | None:
    """Builds the solution's by installing the package again; the tools' output if that fails."""
    command = [sys.executable, "-m", "pip", "install", "--verbose", "--disable-pip-version-check"]
    command += ["--no-build-isolation", "--no-deps", "--editable", "."]
    run = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        # Without it an installation goes on where the extension does not build: see pyproject.toml.
        env={**os.environ, "TINY_LLM_BUILD_EXT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return None if run.returncode == 0 and built_modules() else run.stdout


def clean(tree: Path | None) -> int:
    """Removes the build folder and the installed module."""
    shutil.rmtree((tree or ROOT) / "build", ignore_errors=True)
    if tree is None:
        for module in built_modules():
            module.unlink()
            print(f"removed {module}")
    else:
        print(f"removed {tree / 'build'}")
    return 0


def built_modules() -> list[Path]:
    """The compiled modules of the solution's `tiny_llm_ext` in this environment."""
    return list((Path(sysconfig.get_path("platlib")) / "tiny_llm_ext").glob("_ext.*"))


if __name__ == "__main__":
    sys.exit(main())
