"""A home that is a claim outlives its pod and its agent's restart of the session, and ends with the kernel."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ai.backend.common.errors import BackendError
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import DeviceMapping, WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.plugin.testing.runtime.suite import Talk
from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, OpenRuntime, Site
from tests.support.kube_volumes import STORAGE_CLASS, provisioned

pytestmark = pytest.mark.needs("kubernetes")


@pytest.fixture
async def opened(tmp_path: Path, session_site: Site) -> AsyncIterator[OpenRuntime]:
    with provisioned(session_site.cluster, NAMESPACE):
        opened = session_site.open(tmp_path, home_volume="claim", home_storage_class=STORAGE_CLASS)
        await opened.runtime.setup()
        yield opened
        for view in await opened.runtime.list_workloads():
            await opened.runtime.remove(view.key)
        await opened.runtime.shutdown()
        await opened.api.close()
        session_site.require_nothing_left()
        await asyncio.to_thread(session_site.cluster.wait_for, lambda: not claims(session_site), "no claim to be left")


def claims(site: Site) -> list[str]:
    listed = site.cluster.request("GET", f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims")
    return [item["metadata"]["name"] for item in listed["items"] if item["metadata"]["name"].startswith("h-")]


async def run(opened: OpenRuntime, spec: WorkloadSpec, code: str) -> str:
    view = await opened.runtime.create(spec)
    talk = Talk(await opened.runtime.open_channel(view.key, epoch=1), 60.0)
    await talk.run(code)
    await talk.close()
    return talk.text()


def spec_of(attempt: int = 1, kernel: KernelId | None = None, **changes: object) -> WorkloadSpec:
    key = WorkloadKey(kernel_id=kernel or KernelId(uuid.uuid4()), attempt=attempt)
    spec = WorkloadSpec(key=key, session_id=SessionId(uuid.uuid4()), image=PYTHON_IMAGE, home_bytes=1 << 30)
    return replace(spec, **changes)  # type: ignore[arg-type]


async def test_a_home_outlives_a_restart_and_ends_with_its_kernel(opened: OpenRuntime, session_site: Site) -> None:
    assert "keep-home" in opened.runtime.info().capabilities
    first = spec_of()
    await run(opened, first, "open('kept.txt', 'w').write('kept')")
    await opened.runtime.remove(first.key, keep_home=True)
    second = spec_of(2, first.key.kernel_id)
    assert await run(opened, second, "print(open('kept.txt').read())") == "kept\n"
    await opened.runtime.remove(first.key)
    assert await run(opened, second, "print(open('kept.txt').read())") == "kept\n", "a late order has no effect"
    await opened.runtime.remove(second.key)
    await asyncio.to_thread(session_site.cluster.wait_for, lambda: not claims(session_site), "the end of the home")
    third = spec_of(3, first.key.kernel_id)
    assert await run(opened, third, "import os; print(os.path.exists('kept.txt'))") == "False\n"


async def test_a_creation_that_fails_leaves_no_home(opened: OpenRuntime, session_site: Site) -> None:
    settings = opened.settings.model_copy(update={"schedule_timeout_s": 2.0})
    opened.connection.settings = settings
    nowhere = spec_of(
        config=WorkloadConfig(devices=(DeviceMapping(source="", cdi_name="COUNTED.nowhere.test/x=any-0"),))
    )
    with pytest.raises(BackendError, match=r"nowhere\.test/x"):
        await opened.runtime.create(nowhere)
    await asyncio.to_thread(session_site.cluster.wait_for, lambda: not claims(session_site), "the end of the home")
