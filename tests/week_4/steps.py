"""What the tests of Week 4's products share: how a test runs a kernel by name."""

import pytest

from tiny_llm import kernels

WITH_VECTORS = [
    name
    for name in (kernels.extension().instruction_sets() if kernels.is_built() else [])
    if name in ("avx2", "avx512", "neon")
]


def use_product(name: str, instruction_set: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products go through a kernel of Week 4, with the vectors of an instruction set.

    Args:
        name: what TINY_LLM_PRODUCT is set to.
        instruction_set: one of `WITH_VECTORS`; None skips the test where there are none, and lets
            it fail where the extension is not built.
        monkeypatch: takes it back.
    """
    monkeypatch.setenv("TINY_LLM_PRODUCT", name)
    if instruction_set is not None:
        monkeypatch.setenv("TINY_LLM_CPU_ISA", instruction_set)
    elif kernels.is_built():
        pytest.skip("this machine has no vectors that the kernel is compiled for")
