"""Runs coroutines in Week 5's tests."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Runs a coroutine; fails the test if it does not finish."""

    async def limited() -> None:
        async with asyncio.timeout(10):
            await work

    try:
        asyncio.run(limited())
    except TimeoutError:
        pytest.fail("expected the coroutine to finish, got a deadlock")
