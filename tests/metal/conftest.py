"""Skips kernel tests without clang (for the emulator) and without a GPU."""

import pytest

from tools.metal_emulator import has_clang

from .support import NO_CLANG, on_gpu


@pytest.fixture(autouse=True)
def _clang() -> None:
    if not has_clang() and not on_gpu():
        pytest.skip(NO_CLANG)
