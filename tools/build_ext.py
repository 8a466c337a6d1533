"""`pdm run build-ext` builds the C++ extension; `clean-ext` removes it.

Installing the package also builds the solution's extension. This command rebuilds incrementally
after a change, with the tools of the project's environment. It builds the learner's extension if a
learner's source tree exists; --solution mine or ref overrides this.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tools.course.build import build_tree, built_module
from tools.course.solution_flag import parse_with_tree
from tools.course.tree import ROOT


def main() -> int:
    """Exit status: 0 on success; 1 if the build fails; 2 without a compiler."""
    parser = argparse.ArgumentParser(prog="build-ext", description=__doc__)
    parser.add_argument("--clean", action="store_true", help="remove the build")
    args, tree = parse_with_tree(parser)
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
    """Reinstalls the package; returns the build's output on failure."""
    command = [sys.executable, "-m", "pip", "install", "--verbose", "--disable-pip-version-check"]
    command += ["--no-build-isolation", "--no-deps", "--editable", "."]
    run = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        # Without this variable, the package would be installed even if the build failed.
        env={**os.environ, "TINY_LLM_BUILD_EXT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return None if run.returncode == 0 and built_modules() else run.stdout


def clean(tree: Path | None) -> int:
    """Removes the build; for the solution (None), also the installed module."""
    shutil.rmtree((tree or ROOT) / "build", ignore_errors=True)
    if tree is None:
        for module in built_modules():
            module.unlink()
            print(f"removed {module}")
    else:
        print(f"removed {tree / 'build'}")
    return 0


def built_modules() -> list[Path]:
    """Compiled modules of the solution's `tiny_llm_ext` in this environment."""
    return list((Path(sysconfig.get_path("platlib")) / "tiny_llm_ext").glob("_ext.*"))


if __name__ == "__main__":
    sys.exit(main())
