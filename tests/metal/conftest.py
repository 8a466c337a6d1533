"""Skips kernel tests if there is neither a GPU nor clang for the emulator."""

import pytest

from tools.metal_emulator import has_clang

from .support import NO_CLANG, on_gpu


@pytest.fixture(autouse=True)
def _clang() -> None:
    if not has_clang() and not on_gpu():
        pytest.skip(NO_CLANG)
