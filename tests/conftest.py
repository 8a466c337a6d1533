"""Shared fixtures: devices, dtypes, models."""

import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests import hermetic, quick

if sys.flags.optimize:  # with -O, helper modules lose their asserts unless pytest rewrites them
    for module in ("support", "cli", "engine", "models", "server"):
        pytest.register_assert_rewrite(f"tests.{module}")
hermetic.reset_process()  # must precede the import of modules that read the environment

import mlx.core as mx

from tests.support import DEVICES, DTYPES, use_device, use_emulated_gpu
from tiny_llm import kernels


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="run every wrong solution and full-size random tests: 20,000 requests, 1,000 schemas",
    )
    parser.addoption(
        "--shares",
        type=int,
        default=1,
        metavar="N",
        help="run one of N shares of the slow, thorough and other_isa cases, by commit number",
    )


def pytest_sessionstart() -> None:
    """Clears terminal variables, which pytest itself has already read."""
    hermetic.reset_display()


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Whether `--exhaustive` is set: random tests run at full size."""
    return request.config.getoption("--exhaustive")


@pytest.hookimpl(tryfirst=True)  # before `-m` selection
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects exhaustive cases and other shares; marks and sorts the rest."""
    if not config.getoption("--exhaustive"):
        selected, deselected = [], []
        for item in items:
            (deselected if item.get_closest_marker("exhaustive") else selected).append(item)
        config.hook.pytest_deselected(items=deselected)
        items[:] = selected
    quick.mark_thorough(items)
    if (shares := config.getoption("--shares")) > 1:
        cases = [(item.nodeid, {mark.name for mark in item.iter_markers()}) for item in items]
        included = quick.in_share(cases, shares, quick.commit_number())
        selected, deselected = [], []
        for item, is_included in zip(items, included, strict=True):
            (selected if is_included else deselected).append(item)
        config.hook.pytest_deselected(items=deselected)
        items[:] = selected
    quick.longest_first(items)


# Tests in these folders run on the CPU, even on a Mac: they assert bitwise batch invariance, which
# the GPU does not guarantee (see src/extensions/README.md). `either_device` overrides this.
CPU_FOLDERS = (
    "agent",
    "benchmark",
    "cli",
    "engine",
    "hostile",
    "models",
    "parallel",
    "real",
    "server",
)


@pytest.fixture(scope="module", autouse=True)
def _device_of_folder(request: pytest.FixtureRequest) -> Iterator[None]:
    folder = request.path.relative_to(Path(__file__).parent).parts[0]
    with use_device("cpu") if folder in CPU_FOLDERS else nullcontext():
        yield


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on every device of this machine."""
    with use_device(request.param):
        yield request.param


@pytest.fixture(params=["cpu", "gpu"])
def either_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on the CPU and on a GPU: this machine's or an emulated one.

    The emulator is slow: use few tokens and a small model. Create arrays and models in the test, on
    its device.
    """
    if request.param in DEVICES:
        with use_device(request.param):
            yield request.param
        return
    from tools.metal_emulator import has_clang

    if not kernels.is_built() or not has_clang():
        pytest.skip("the Metal emulator needs clang 19: apt install clang-19 libclang-rt-19-dev")
    with use_emulated_gpu():
        yield request.param


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """Runs the test on the CPU: for CPU kernels and bitwise guarantees."""
    with use_device("cpu"):
        yield


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).rpartition(".")[2])
def dtype(request: pytest.FixtureRequest) -> mx.Dtype:
    """Runs the test in float32, float16 and bfloat16."""
    return request.param


# In a learner's source tree, operations run the learner's portable C++ kernels: see tools/course.
IS_LEARNERS_TREE = hasattr(sys.modules.get("sitecustomize"), "LearnersTree")

# Commands prefer an existing learner's source tree; tests of the solution must not use it.
if not IS_LEARNERS_TREE:
    os.environ["TINY_LLM_MINE"] = "/there-is-no-learners-tree"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Fails a test that reaches an unimplemented part of a learner's kernel.

    The kernel throws on the stream's thread, so only the next operation would raise the error.
    Without this check, a test that ends before its next operation would pass.
    """
    try:
        return (yield)
    finally:
        if IS_LEARNERS_TREE and kernels.is_built():
            getattr(kernels.extension(), "rethrow_task_error", lambda: None)()


INSTRUCTION_SETS = (
    kernels.extension().instruction_sets()
    if kernels.is_built() and not IS_LEARNERS_TREE
    else ["portable"]
)


# A quick run uses portable C++ and this machine's best instruction set.
@pytest.fixture(
    params=[
        name
        if name in (INSTRUCTION_SETS[0], INSTRUCTION_SETS[-1])
        else pytest.param(name, marks=pytest.mark.other_isa)
        for name in INSTRUCTION_SETS
    ]
)
def instruction_set(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, on_cpu: None
) -> str:
    """Runs the test on the CPU with every instruction set of this machine.

    The kernel is selected at evaluation: call `mx.eval` inside the test.
    """
    monkeypatch.setenv("TINY_LLM_CPU_ISA", request.param)
    return request.param


@pytest.fixture(autouse=True)
def _fail_on_gpu_faults() -> Iterator[None]:
    """Fails a test with emulated GPU faults, even if it catches their errors."""
    yield
    assert not kernels.report_emulator_faults(), "the emulated GPU reported faults; see stderr"


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Reseeds before every test, so results do not depend on test order."""
    mx.random.seed(20_251_121)


@pytest.fixture(scope="session")
def demo() -> tuple[Any, Any]:
    """The bundled demo model and its tokenizer, as `mlx_lm.load` returns them."""
    from tiny_llm import load

    return load("demo")


@pytest.fixture(params=["load", "load_weights"])
def load_either(request: pytest.FixtureRequest) -> Callable[[str], tuple[Any, Any]]:
    """Loads a model with `load` or `load_weights`: the test runs once with each."""
    import tiny_llm

    return getattr(tiny_llm, request.param)
