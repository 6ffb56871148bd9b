"""The Docker runtime keeps the contract on an engine of the 29 line, and has devices by their CDI names there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.plugin.accelerator import DeviceMapping, WorkloadConfig
from ai.backend.plugin.runtime import AbstractRuntime
from tests.contract.runtime import test_docker
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine, cdi_engine_in, end_engine

_LOOK = """
import os, stat
places = ["/dev/acme0", "/dev/plain0", "/opt/acme/version"]
print(*(os.path.exists(place) for place in places), os.environ.get("ACME_MODE"))
"""


@pytest.fixture(scope="module")
def docker_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerEngine]:
    """In place of the machine's own engine."""
    engine = cdi_engine_in(tmp_path_factory.mktemp("docker29"))
    process = engine.start()
    try:
        engine.ensure_image(PYTHON_IMAGE)
        yield engine
    finally:
        end_engine(engine, process)


@pytest.fixture(scope="module")
def known_images(docker_engine: DockerEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing: what is known of the other engine's images is not known of this one's."""
    place = tmp_path_factory.mktemp("known29") / "images"
    place.mkdir()
    return place


def specification(folder: Path) -> Mapping[str, Any]:
    (folder / "version").write_text("7")
    return {
        "cdiVersion": "0.5.0",
        "kind": "acme.example/card",
        "devices": [
            {
                "name": "c0",
                "containerEdits": {
                    "deviceNodes": [{"path": "/dev/acme0", "hostPath": "/dev/null"}],
                    "mounts": [
                        {
                            "hostPath": str(folder / "version"),
                            "containerPath": "/opt/acme/version",
                            "options": ["ro", "bind"],
                        }
                    ],
                },
            }
        ],
        "containerEdits": {"env": ["ACME_MODE=cdi"]},
    }


@pytest.mark.needs("cdi-engine")
class TestDockerWithCdi(test_docker.TestDocker):
    async def test_the_engine_is_of_the_29_line(self, runtime: AbstractRuntime, docker_engine: DockerEngine) -> None:
        assert docker_engine.call("GET", "/version")[1]["Version"].startswith("29.")
        assert runtime.info().cdi_directories == (str(docker_engine.directory / "cdi"),)

    async def test_a_described_name_is_injected_by_the_engine(
        self, runtime: AbstractRuntime, docker_engine: DockerEngine, tmp_path: Path
    ) -> None:
        specification_path = docker_engine.directory / "cdi" / "acme.json"
        specification_path.write_text(json.dumps(specification(tmp_path)))
        try:
            devices = (
                DeviceMapping(source="/dev/zero", target="/dev/plain0", cdi_name="acme.example/card=c0"),
                DeviceMapping(source="/dev/full", target="/dev/plain0", cdi_name="acme.example/card=gone"),
            )
            by_name = await self.start(runtime, self.spec(config=WorkloadConfig(devices=devices[:1])))
            await by_name.run(_LOOK)
            assert by_name.text() == "True False True cdi\n", "the name comes first, with all its edits"
            by_node = await self.start(runtime, self.spec(config=WorkloadConfig(devices=devices[1:])))
            await by_node.run(_LOOK)
            assert by_node.text() == "False True False None\n", "a name that nothing describes: its device file"
        finally:
            specification_path.unlink()

    async def test_a_name_that_nothing_describes_is_denied_before_anything_is_made(
        self, runtime: AbstractRuntime, docker_engine: DockerEngine
    ) -> None:
        config = WorkloadConfig(devices=(DeviceMapping(source="", cdi_name="acme.example/card=gone"),))
        with pytest.raises(CreationDenied) as denied:
            await runtime.create(self.spec(config=config))
        assert denied.value.data == {"field": "devices", "key": "acme.example/card=gone"}
        assert f"no CDI specification in {docker_engine.directory / 'cdi'} describes it" in denied.value.message
        assert not docker_engine.containers()
