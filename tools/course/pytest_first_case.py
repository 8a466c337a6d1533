"""A plugin of pytest: of each test function, the first case alone.

A task that is not written fails in every case, and with the same line.
"""

import pytest


@pytest.hookimpl(trylast=True)  # after `-m` has chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out all other cases."""
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(item.nodeid.partition("[")[0], item)
    chosen = set(first.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = first.values()
