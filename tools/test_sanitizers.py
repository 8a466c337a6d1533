"""`pdm run test-sanitizers`: tests of the extension under ASan and UBSan.

Builds an instrumented extension in build/sanitized and runs the kernel tests against it. The first
out-of-bounds access, use-after-free or undefined behavior aborts the process with a report. Extra
arguments are passed to pytest.

LD_PRELOAD loads the sanitizer's runtime first. So that the installed extension is not imported,
Python starts without `site` (-S), which would resolve the editable installation, and with explicit
import paths. The two xdist workers (--tx) start the same way; as their pytest plugin, this module
checks that each imported the instrumented extension.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "sanitized"
PACKAGE = BUILD / "package"
TESTS = (
    "tests/week_2/test_day_2.py",
    "tests/week_2/test_day_4.py",
    "tests/week_2/test_day_5.py",
    "tests/week_3/test_day_3.py",
    "tests/ops",
)

# Tests of operations with kernels of their own for each variant of AVX-512. Other operations run
# the same machine code on `avx512` and `amx`, and the same source on `avx512vnni`.
AVX512_TESTS = re.compile("matmul|attention|prepack|activation|sinks|window|pages|fuzz|capture")


def main() -> int:
    """Exit status: 0 if skipped; 1 if the build fails; otherwise pytest's."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        print("test-sanitizers: skipped: requires Linux and GCC.", file=sys.stderr)
        return 0
    if not build():
        print("test-sanitizers: the extension did not build; see above.", file=sys.stderr)
        return 1
    environment = {
        **os.environ,
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so.6')}",
        "ASAN_OPTIONS": "detect_leaks=0",  # off, because Python itself leaks memory
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join(
            [str(PACKAGE), str(ROOT / "src"), str(ROOT), sysconfig.get_path("platlib")]
        ),
    }
    tests = [test for test in TESTS if (ROOT / test).exists()]
    command = [sys.executable, "-S", "-m", "pytest", "-p", "tools.test_sanitizers", "-q", "-x"]
    # ASan reports to file descriptor 2. If pytest captured it, an abort would lose the report.
    command += ["--capture=sys"]
    # In the days of TESTS, task 0 runs another extension, and task 3 none: it is a Metal kernel,
    # which the emulator runs, or the scheduler. Whole models take minutes and run the same kernels.
    no_kernels = ("task_0", "task_3", "demo", "(capture_models and layers)")
    command += ["-k", " and ".join(f"not {name}" for name in no_kernels)]
    # A few cases on every instruction set suffice to detect out-of-bounds accesses.
    command += ["-m", "not slow and not thorough"]
    command += ["--dist", "load", "--tx", f"2*popen//python={shlex.quote(sys.executable)} -S"]
    command += [*tests, *sys.argv[1:]]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def pytest_configure() -> None:
    """Pytest hook that requires an extension built with sanitizers."""
    import tiny_llm_ext

    found = Path(tiny_llm_ext.__file__)
    assert found.is_relative_to(PACKAGE), f"{found} was built without sanitizers"


def pytest_collection_modifyitems(config: "pytest.Config", items: list["pytest.Item"]) -> None:
    """Deselects cases that would run another case's kernels; see `AVX512_TESTS`."""
    from tiny_llm import kernels

    *others, best = kernels.extension().instruction_sets()
    equal = {name for name in others if best in ("avx512", "amx") and name.startswith("avx512")}
    selected: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        isa = None if callspec is None else callspec.params.get("instruction_set")
        is_equal = isa in equal and not AVX512_TESTS.search(item.nodeid)
        (deselected if is_equal else selected).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


def build() -> bool:
    """Compiles the extension with the sanitizers; returns whether the build succeeded."""
    configure = ["cmake", "-S", "src/extensions", "-B", str(BUILD), "-G", "Ninja"]
    configure += [
        "-DTINY_LLM_SANITIZE=ON",
        "-DTINY_LLM_UNITY=ON",
        "-DTINY_LLM_HOST_ONLY=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    install = ["cmake", "--install", str(BUILD), "--prefix", str(PACKAGE)]
    for command in (configure, ["cmake", "--build", str(BUILD)], install):
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            print(result.stdout, result.stderr, sep="\n", file=sys.stderr)
            return False
    for file in (ROOT / "src/extensions/tiny_llm_ext").glob("*.py"):
        shutil.copy(file, PACKAGE / "tiny_llm_ext")
    return True


def library(name: str) -> str:
    """Path of one of the compiler's runtime libraries."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
