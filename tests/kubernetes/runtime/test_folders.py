"""Virtual folders are sub-paths of a claim: several of them, writable or not, and through no link out of the volume."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import BackendError
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.accelerator import Mount, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from ai.backend.runtime.kubernetes.settings import FolderClaim
from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, OpenRuntime, Site

pytestmark = pytest.mark.needs("kubernetes")
CLAIM = "vfolders"


@pytest.fixture
async def volume(session_site: Site) -> AsyncIterator[Path]:
    """A folder of this machine, which is the node too, as a volume that many pods may mount."""
    folder = session_site.cluster.folder / f"volume-{uuid.uuid4().hex[:8]}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": folder.name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany"],
                "hostPath": {"path": str(folder)},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": NAMESPACE},
            "spec": {**claim, "volumeName": folder.name},
        },
    ]
    await asyncio.to_thread(session_site.cluster.apply, *objects)
    yield folder
    kubectl = session_site.cluster.kubectl
    await asyncio.to_thread(kubectl, "delete", "pvc", "-n", NAMESPACE, CLAIM)
    await asyncio.to_thread(kubectl, "delete", "pv", folder.name)


@pytest.fixture
async def opened(tmp_path: Path, session_site: Site, volume: Path) -> AsyncIterator[OpenRuntime]:
    folders = {"/vfroot/local": FolderClaim(claim=CLAIM, sub_path="data")}
    opened = session_site.open(tmp_path, folders=folders, start_timeout_s=10.0, pull_timeout_s=10.0)
    await opened.runtime.setup()
    yield opened
    for view in await opened.runtime.list_workloads():
        await opened.runtime.remove(view.key)
    await opened.runtime.shutdown()
    await opened.api.close()
    session_site.require_nothing_left()


def spec_of(*mounts: Mount) -> WorkloadSpec:
    key = WorkloadKey(kernel_id=KernelId(uuid.uuid4()), attempt=1)
    config = WorkloadConfig(mounts=mounts)
    return WorkloadSpec(key=key, session_id=SessionId(uuid.uuid4()), image=PYTHON_IMAGE, config=config)


async def test_folders_are_mounted_as_asked(opened: OpenRuntime, volume: Path) -> None:
    for name in ("one", "two"):
        (volume / "data" / name).mkdir(parents=True)
        (volume / "data" / name).chmod(0o777)
    (volume / "data" / "two" / "model").write_text("weights")
    spec = spec_of(
        Mount(source="/vfroot/local/one", target="/home/work/one", read_only=False),
        Mount(source="/vfroot/local/two", target="/home/work/two"),
    )
    view = await opened.runtime.create(spec)
    talk = Talk(await opened.runtime.open_channel(view.key, epoch=1), 40.0)
    await talk.run("print(open('two/model').read(), open('one/result', 'w').write('done'))\nopen('two/x', 'w')")
    assert talk.text() == "weights 4\n"
    assert "Read-only file system" in talk.text(stream="stderr")
    assert (volume / "data" / "one" / "result").read_text() == "done"
    await talk.close()


async def test_a_link_does_not_lead_out_of_the_volume(opened: OpenRuntime, volume: Path) -> None:
    (volume / "data").mkdir()
    (volume / "data" / "evil").symlink_to("/etc")
    with pytest.raises(BackendError):
        await opened.runtime.create(spec_of(Mount(source="/vfroot/local/evil", target="/home/work/evil")))
    assert not await opened.runtime.list_workloads()
