"""`pdm run check-package`: builds, installs and runs the package.

Builds an sdist, builds a wheel from the sdist, and installs the wheel with its dependencies into a
new virtual environment outside the repository. The program and an example run in an empty folder,
with only PATH and HOME set. A wheel built directly from the repository must have the same files.
Requires uv, which `./pdmw` installs.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tools.course.build import LESS_OPTIMIZED

ROOT = Path(__file__).resolve().parents[1]
SDIST_LIMIT = 12_000_000  # bytes; the bundled models take three quarters
SDIST_FOLDERS = {"src"}
REQUIRED_FILES = (
    "tiny_llm/py.typed",
    "tiny_llm/demo/target/model.safetensors",
    "tiny_llm/demo/draft/model.safetensors",
    "tiny_llm/demo/hybrid/model.safetensors",
    "tiny_llm_ext/__init__.py",
    "licenses/LICENSE",
    "entry_points.txt",
)
# Options of `uv build` that compile the extension faster, with less optimization.
FAST_BUILD = tuple(f"-Ccmake.define.{option.removeprefix('-D')}" for option in LESS_OPTIMIZED)
QUESTION = ("--model", "demo", "--prompt", "What is the capital of France?")


class PackageError(Exception):
    """A defect of the package, in one sentence."""


def main() -> int:
    """Exit status: 0 if the package is correct; 1 if not; 2 without uv."""
    if shutil.which("uv") is None:
        print("check-package: uv is missing; run `./pdmw run check-package`.")
        return 2
    with tempfile.TemporaryDirectory(prefix="tiny-llm-package-") as folder:
        try:
            check(Path(folder))
        except PackageError as error:
            print(f"check-package: {error}")
            return 1
    return 0


def check(folder: Path) -> None:
    """Builds, installs and runs the package in `folder`; raises `PackageError`."""
    # Builds from the repository with this environment's tools, to reuse the compiled extension.
    run("uv", "build", "--wheel", "--no-build-isolation", "--python", sys.executable,
        "--out-dir", str(folder / "direct"), cwd=ROOT)  # fmt: skip
    run("uv", "build", "--sdist", "--python", sys.executable, "--out-dir", str(folder), cwd=ROOT)
    sdist = next(folder.glob("*.tar.gz"))
    check_sdist(sdist)
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
    run("uv", "build", "--wheel", "--python", sys.executable, "--out-dir", str(folder), str(sdist),
        *FAST_BUILD, cwd=folder)  # fmt: skip
    wheel = next(folder.glob("*.whl"))
    check_wheel(wheel, next((folder / "direct").glob("*.whl")))
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")

    empty, environment = folder / "empty", folder / "environment"
    empty.mkdir()
    run("uv", "venv", "--python", sys.executable, str(environment), cwd=empty)
    python = environment / "bin" / "python"
    run("uv", "pip", "install", "--python", str(python), str(wheel), cwd=empty)
    program = str(environment / "bin" / "tiny-llm")
    bare = {"PATH": os.defpath, "HOME": str(empty)}
    version = run(program, "--version", cwd=empty, environment=bare)
    if version.strip() != f"tiny-llm {wheel.name.split('-')[1]}":
        raise PackageError(f"`tiny-llm --version` prints the wrong version '{version.strip()}'.")
    for command in ([program, "main"], [str(python), "-m", "tiny_llm", "main"]):
        answer = run(*command, *QUESTION, cwd=empty, environment=bare)
        if "Paris" not in answer:
            raise PackageError(f"`{' '.join(command)}` must print 'Paris', got '{answer.strip()}'.")
    if "built: " not in run(program, "check", cwd=empty, environment=bare):
        raise PackageError("`tiny-llm check` does not find the extension.")
    example = ROOT / "examples" / "generate.py"
    answers = run(str(python), str(example), cwd=empty, environment=bare)
    if "17 + 25 = 42" not in answers:
        raise PackageError(f"{example.name} must print '17 + 25 = 42', got '{answers.strip()}'.")
    print(f"{version.strip()} answers from a new environment")


def check_sdist(sdist: Path) -> None:
    """Raises `PackageError` for repository-only files or an excessive size."""
    with tarfile.open(sdist) as archive:
        paths = [Path(*Path(name).parts[1:]) for name in archive.getnames()]
    folders = {path.parts[0] for path in paths if len(path.parts) > 1}
    if folders != SDIST_FOLDERS:
        raise PackageError(f"the sdist must contain only src, got {sorted(folders)}.")
    if sdist.stat().st_size > SDIST_LIMIT:
        raise PackageError(
            f"the sdist must have at most {SDIST_LIMIT} bytes, got {sdist.stat().st_size}."
        )


def check_wheel(wheel: Path, direct: Path) -> None:
    """Raises `PackageError` for missing files or differences from `direct`."""
    names, others = (set(zipfile.ZipFile(file).namelist()) for file in (wheel, direct))
    for name in REQUIRED_FILES:
        if not any(one.endswith(name) for one in names):
            raise PackageError(f"the wheel lacks {name}.")
    if not any("/_ext." in name for name in names):
        raise PackageError("the wheel lacks the C++ extension.")
    if names != others:
        raise PackageError(f"wheels of sdist and repository differ in {sorted(names ^ others)}.")


def run(*command: str, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Runs a command; returns its standard output.

    `environment` defaults to this process's without PYTHONPATH, VIRTUAL_ENV and TINY_LLM_MINE, so
    that Python imports neither the repository nor a learner's source tree.

    Raises:
        PackageError: the command failed; the message has the command's output.
    """
    if environment is None:
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "TINY_LLM_MINE")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        # Without this variable, the package is installed even if its extension cannot be built.
        environment["TINY_LLM_BUILD_EXT"] = "1"
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise PackageError(
            f"`{' '.join(command)}` exited with status {result.returncode}:\n"
            f"{result.stdout}{result.stderr}"
        )
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
