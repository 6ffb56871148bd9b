"""Rules of the lane: a cluster takes some seconds to start, and a daemon that is killed some more to come back."""

import pytest
from tools.kube.daemon import SLOWNESS

TIMEOUT_S = 400 * SLOWNESS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/kubernetes" in item.path.as_posix() and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
