"""Fixture of the operations' tests: instruction sets that read prepacked weights."""

import pytest

from tests.conftest import INSTRUCTION_SETS

READERS = [name for name in INSTRUCTION_SETS if name != "portable"]


# A quick run uses this machine's best instruction set.
@pytest.fixture(
    params=[
        *(pytest.param(name, marks=pytest.mark.other_isa) for name in READERS[:-1]),
        READERS[-1] if READERS else None,
    ]
)
def prepacked_isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, on_cpu) -> str:
    """Selects each instruction set that has kernels for prepacked weights."""
    if request.param is None:
        pytest.skip("needs kernels that read prepacked weights")
    monkeypatch.setenv("TINY_LLM_CPU_ISA", request.param)
    return request.param
