from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.component.runner.driver import Driver


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Driver]]:
    """Starts runners in the same home; all of them end politely when the test does."""
    started: list[Driver] = []

    def start_one(runtime: str = "python", **env: str) -> Driver:
        driver = Driver(home, runtime, env=env)
        started.append(driver)
        return driver

    yield start_one
    for driver in started:
        driver.close()


@pytest.fixture
def runner(start: Callable[..., Driver]) -> Driver:
    return start()
