"""An agent whose `runsc` starts no sandbox offers no class of gVisor, and says the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import CreationDenied, InvalidInput
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings

REASONS: list[tuple[dict[str, Any], str]] = [
    ({"gvisor": "off"}, "off by settings"),
    ({"runsc": "/nowhere/runsc"}, "gVisor does not work: .*No such file"),
    ({"runsc": "/bin/true"}, "runs programs in another kernel"),
    ({"runsc": "/bin/false"}, "it ends with code 1"),
    ({"runsc": "/bin/true", "cgroups": "off"}, "control groups for cpu, memory, pids"),
]


@pytest.mark.needs("root", "isolation", "cgroups")
@pytest.mark.parametrize(("settings", "reason"), REASONS)
async def test_the_class_is_not_offered_and_denied_with_the_reason(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    runtime = ProcessRuntime(ProcessRuntimeSettings(**settings), tmp_path / "state")
    await runtime.setup()
    key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
    spec = WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="python", runtime_class="gvisor")
    try:
        assert runtime.info().runtime_classes == ()
        with pytest.raises(CreationDenied, match=reason):
            await runtime.create(spec)
    finally:
        await runtime.shutdown()


@pytest.mark.needs("root", "isolation", "cgroups")
async def test_an_agent_whose_sessions_are_all_in_gvisor_does_not_start_without_it(tmp_path: Path) -> None:
    """The start is refused, so that no session gets another sandbox instead of gVisor."""
    settings = ProcessRuntimeSettings(default_runtime_class="gvisor", runsc=Path("/bin/true"))
    runtime = ProcessRuntime(settings, tmp_path / "state")
    with pytest.raises(InvalidInput, match="another kernel"):
        await runtime.setup()
    assert runtime.zygote_pid is None
