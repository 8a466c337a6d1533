"""Everything here runs kernels in the emulator, which needs clang."""

import pytest

from tools.metal_emulator import has_clang

from .support import NO_CLANG


@pytest.fixture(autouse=True)
def _clang() -> None:
    if not has_clang():
        pytest.skip(NO_CLANG)
