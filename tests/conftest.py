"""Shared fixtures: devices, dtypes, models."""

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests import hermetic, quick

if sys.flags.optimize:  # otherwise helpers' asserts would be ignored
    pytest.register_assert_rewrite("tests.support", "tests.engine", "tests.models", "tests.server")
hermetic.reset_process()  # before imports that read the environment

import mlx.core as mx

from tests.support import DEVICES, DTYPES, use_device, use_emulated_gpu
from tiny_llm import kernels


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --exhaustive and --shares."""
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="run all wrong solutions and full-size random tests (20,000 requests, 1,000 schemas)",
    )
    parser.addoption(
        "--shares",
        type=int,
        default=1,
        metavar="N",
        help="run 1/N of the cases marked thorough or other_isa; each commit runs the next share",
    )


def pytest_sessionstart() -> None:
    """Clears the terminal's environment variables once pytest has read them."""
    hermetic.reset_display()


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Whether --exhaustive is set: random tests run in full instead of a sample."""
    return request.config.getoption("--exhaustive")


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects cases outside this run, marks thorough ones and runs long files first."""
    if not config.getoption("--exhaustive"):
        kept, deselected = [], []
        for item in items:
            (deselected if item.get_closest_marker("exhaustive") else kept).append(item)
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept
    quick.mark_thorough(items)
    if (shares := config.getoption("--shares")) > 1:
        commit = quick.commit_number()
        kept, deselected = [], []
        for item in items:
            marks = {mark.name for mark in item.iter_markers()}
            (kept if quick.in_share(item.nodeid, marks, shares, commit) else deselected).append(
                item
            )
        config.hook.pytest_deselected(items=deselected)
        items[:] = kept
    quick.longest_first(items)


# Tests in these folders run on the CPU even on a Mac, because they assert bitwise batch invariance,
# which the GPU does not guarantee (src/extensions/README.md). `either_device` runs a test on both.
CPU_FOLDERS = ("agent", "benchmark", "cli", "engine", "hostile", "models", "parallel", "server")


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
    """Runs the test on the CPU and on a GPU, either this machine's or the emulated one.

    The emulator is slow: use few tokens and a small model. Create arrays and models inside the
    test, so that they are on its device.
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
    """Runs a test of CPU kernels or of bitwise guarantees on the CPU."""
    with use_device("cpu"):
        yield


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).rpartition(".")[2])
def dtype(request: pytest.FixtureRequest) -> mx.Dtype:
    """Runs the test in float32, float16 and bfloat16."""
    return request.param


# In a learner's tree the operations run the learner's plain C++ kernels: see tools/course.
IS_LEARNERS_TREE = hasattr(sys.modules.get("sitecustomize"), "LearnersTree")

# Commands use a learner's tree if one exists; tests of the solution must not.
if not IS_LEARNERS_TREE:
    os.environ["TINY_LLM_MINE"] = "/there-is-no-learners-tree"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Fails a test that reaches an unimplemented part of a learner's kernel.

    The kernel throws on the stream's thread, and the error surfaces only in the next operation,
    which the test may not have.
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


# Quick runs use plain C++ and this machine's best instruction set.
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
    """Runs the test on the CPU with every instruction set this machine supports.

    The kernel is selected at evaluation: call `mx.eval` inside the test.
    """
    monkeypatch.setenv("TINY_LLM_CPU_ISA", request.param)
    return request.param


@pytest.fixture(autouse=True)
def _fail_on_gpu_faults() -> Iterator[None]:
    """Fails a test on any fault of the emulated GPU, even a caught one."""
    yield
    assert not kernels.report_emulator_faults(), "the emulated GPU reported faults; see stderr"


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Seeds every test, so that its random numbers do not depend on other tests."""
    mx.random.seed(20_251_121)


@pytest.fixture(scope="session")
def demo() -> tuple[Any, Any]:
    """The bundled model and its tokenizer, as returned by `mlx_lm.load`."""
    from tiny_llm import load

    return load("demo")


@pytest.fixture(scope="session")
def demo_bfloat16_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the bundled model's weights in bfloat16, loadable by `transformers`."""
    from tests.support import write_dequantized
    from tiny_llm.demo import TARGET_PATH

    return write_dequantized(TARGET_PATH, tmp_path_factory.mktemp("demo-bf16"))
