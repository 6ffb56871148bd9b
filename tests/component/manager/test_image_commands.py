"""`backend.ai mgr etcd` and `mgr image` without a manager that runs, as the guides show them (03-02, 03-06)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ai.backend.manager.crash_points import IMAGE_CRASH_POINTS
from ai.backend.manager.main import main
from tests.support.docker_registry import DockerRegistry, running_registry
from tests.support.forked import ForkedPopen
from tests.support.migrated import migrated

pytestmark = [pytest.mark.needs("registry")]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with running_registry(tmp_path_factory.mktemp("registry") / "r") as started:
        started.put_image("stable/python", "3.11", "3.12", labels={"ai.backend.kernelspec": "1"})
        started.put_image("stable/odd", "1", labels={"ai.backend.kernelspec": "x"})
        yield started


class House:
    """The settings of a manager on a fresh database."""

    def __init__(self, folder: Path) -> None:
        self.environment = {
            "BACKEND_MANAGER_DATA_DIR": str(folder),
            "BACKEND_MANAGER_DATABASE__URL": f"sqlite:///{migrated(folder / 'manager.db')}",
        }

    def __call__(self, *words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, list(words), env=self.environment)
        return done.exit_code, done.output


@pytest.fixture
def house(tmp_path: Path, registry: DockerRegistry) -> House:
    house = House(tmp_path)
    key = f"config/docker/registry/{registry.name.replace(':', '%3A')}"
    assert house("etcd", "put", key, registry.url)[0] == 0
    assert house("etcd", "put", f"{key}/project", "stable")[0] == 0
    return house


def test_the_catalogue_is_kept_by_commands(house: House, registry: DockerRegistry) -> None:
    code, said = house("image", "rescan", registry.name)
    assert (code, "2 images; 2 are new" in said) == (0, True), said
    assert "stable/odd:1: ai.backend.kernelspec" in said
    name = f"{registry.name}/stable/python:3.11"
    assert house("image", "alias", "py", name) == (0, "")
    assert "is no one image" in house("image", "alias", "both", f"{registry.name}/stable/python")[1]
    assert "stands for" in house("image", "alias", "py", f"{registry.name}/stable/python:3.12")[1]
    listed = house("image", "list")[1].splitlines()
    assert [line.split()[0] for line in listed] == [name, f"{registry.name}/stable/python:3.12"]
    assert listed[0].endswith("(py)")
    assert house("image", "dealias", "py")[0] == 0
    assert house("image", "dealias", "py") == (1, "Error: there is no alias py\n")
    assert house("image", "forget", name)[0] == 0
    assert house("image", "forget", name)[0] == 1
    assert "1 are new" in house("image", "rescan")[1]
    assert house("image", "rescan", "nowhere.test")[0] == 1


@pytest.mark.parametrize("point", IMAGE_CRASH_POINTS)
def test_a_scan_that_is_killed_is_simply_done_again(house: House, registry: DockerRegistry, point: str) -> None:
    program = "from ai.backend.manager.main import main; main()"
    process = ForkedPopen(
        [sys.executable, "-c", program, "image", "rescan"],
        env={**os.environ, **house.environment, "BACKENDAI_CRASH_POINT": point},
    )
    assert process.wait(60) == -signal.SIGKILL
    code, said = house("image", "rescan")
    assert (code, "2 images; 0 are new, 0 are gone" in said) == (0, True), said
