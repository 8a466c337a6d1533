"""Partially written kernels: exceptions thrown in a pool thread propagate."""

import os
import shutil
import subprocess

import pytest

from tests import conftest
from tiny_llm import kernels
from tools.course.tasks import unwritten_message
from tools.course.tree import EXTENSION, ROOT

PROGRAM = """
#include <atomic>
#include <iostream>
#include <stdexcept>

#include "common/threads.h"

int main() {
    for (int round = 0; round < 100; round++) {
        std::atomic<int> begun = 0;
        try {
            tiny_llm_ext::parallel_for(64, [&](int64_t chunk) {
                begun++;
                if (chunk % 3 == 0) {
                    throw std::runtime_error("MESSAGE");
                }
            });
            return 1;
        } catch (const std::runtime_error& error) {
            if (round == 0) {
                std::cout << error.what() << "\\n";
            }
        }
        if (begun != 64) {
            return 2;  // a thread may still be at work for a job that has ended
        }
        std::atomic<int> sum = 0;
        tiny_llm_ext::parallel_for(64, [&](int64_t chunk) { sum += static_cast<int>(chunk); });
        if (sum != 63 * 64 / 2) {
            return 3;
        }
    }
}
"""


@pytest.mark.slow
def test_pool_thread_exception_reaches_the_caller(tmp_path):
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    message = unwritten_message("2.2.2", "dot")
    program = tmp_path / "throws.cpp"
    program.write_text(PROGRAM.replace("MESSAGE", message))
    common = ROOT / EXTENSION / "common"
    sources = [str(program), str(common / "threads.cpp"), str(common / "schedule.cpp")]
    flags = ["-std=c++20", "-O0", "-pthread", f"-I{ROOT / EXTENSION}"]
    built = [compiler, *flags, *sources, "-o", str(tmp_path / "throws")]
    subprocess.run(built, check=True, capture_output=True, text=True)
    result = subprocess.run(
        [str(tmp_path / "throws")],
        env={**os.environ, "TINY_LLM_NUM_THREADS": "4"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [message]


def test_test_fails_with_the_kernel_exception(monkeypatch):
    class Extension:
        @staticmethod
        def rethrow_task_error():
            raise RuntimeError(unwritten_message("2.2.2", "dot"))

    # The patches are undone before pytest resumes the real hook for this test.
    with monkeypatch.context() as patch:
        patch.setattr(conftest, "IS_LEARNERS_TREE", True)
        patch.setattr(conftest.kernels, "is_built", lambda: True)
        patch.setattr(conftest.kernels, "extension", Extension)
        hook = conftest.pytest_runtest_call()
        next(hook)
        with pytest.raises(RuntimeError, match="dot is yours to write"):
            hook.throw(AssertionError("expected 1, got 2"))


def test_extension_reports_kernel_exceptions():
    assert kernels.extension().rethrow_task_error() is None, "expected no pending exception"
