"""`pdm run build-ext`: builds the C++ extension in place, or removes it (`pdm run clean-ext`).

Installing the package builds it too. This command is for after a change to its sources: only what
changed is compiled again, with the tools of the project's own environment.
"""

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Exit status 0 if the extension is there (or, with --clean, gone)."""
    parser = argparse.ArgumentParser(prog="build-ext", description=__doc__)
    parser.add_argument("--clean", action="store_true", help="remove what was built")
    if parser.parse_args().clean:
        return clean()
    if not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        print(
            "build-ext: no C++ compiler found; on macOS run `xcode-select --install`, on Debian "
            "and Ubuntu `apt install g++`.",
            file=sys.stderr,
        )
        return 2
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
    if run.returncode != 0 or not built_modules():
        print(run.stdout, file=sys.stderr)
        print("build-ext: the extension did not build; see above.", file=sys.stderr)
        return 1
    print(f"built {built_modules()[0]}")
    return 0


def clean() -> int:
    """Removes the build folder and the installed module."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    for module in built_modules():
        module.unlink()
        print(f"removed {module}")
    return 0


def built_modules() -> list[Path]:
    """The compiled modules of `tiny_llm_ext` in this environment."""
    return list((Path(sysconfig.get_path("platlib")) / "tiny_llm_ext").glob("_ext.*"))


if __name__ == "__main__":
    sys.exit(main())
