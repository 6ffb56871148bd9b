"""What an agent offers as runtime classes, of what its runtime lists and its operator declares."""

from __future__ import annotations

import pytest

from ai.backend.agent.config.settings import RuntimeClassSettings
from ai.backend.agent.lifecycle.workload_config import oci_runtime_of, reports_of, without_overhead
from ai.backend.common.errors import CreationDenied
from ai.backend.common.wire.reports import RuntimeClassReport
from ai.backend.plugin.accelerator import WorkloadConfig
from ai.backend.plugin.runtime import RuntimeInfo

MIB = 1024 * 1024


def info(*runtimes: str) -> RuntimeInfo:
    return RuntimeInfo(name="docker", version="1", workload_type="container", tier="t", runtime_classes=runtimes)


def test_what_the_engine_lists_is_offered_by_its_name() -> None:
    assert reports_of({}, info("crun", "runc")) == [RuntimeClassReport(name="crun"), RuntimeClassReport(name="runc")]
    assert reports_of({}, info()) == []


def test_runtimes_of_virtual_machines_are_known() -> None:
    (found,) = reports_of({}, info("kata-fc"))
    assert found == RuntimeClassReport(
        name="kata-fc", kind="vm", overhead={"mem": str(150 * MIB)}, whole_devices=True, max_devices=1
    )


def test_gvisor_takes_devices_only_where_the_operator_says_so() -> None:
    assert reports_of({}, info("runsc")) == [RuntimeClassReport(name="runsc", max_devices=0)]
    declared = {"guarded": RuntimeClassSettings(runtime="runsc-kvm")}
    assert reports_of(declared, info("runsc-kvm")) == [RuntimeClassReport(name="guarded", max_devices=0)]
    declared = {"guarded": RuntimeClassSettings(runtime="runsc", max_devices=8)}
    assert reports_of(declared, info("runsc")) == [RuntimeClassReport(name="guarded", max_devices=8)]


def test_a_declaration_stands_for_the_runtime() -> None:
    secure = RuntimeClassSettings(
        runtime="kata", kind="vm", overhead_cpu=0.5, overhead_mem="200m", max_devices=2, whole_devices=False
    )
    declared = {"secure": secure, "absent": RuntimeClassSettings(runtime="runsc")}
    found = reports_of(declared, info("kata", "runc"))
    assert [one.name for one in found] == ["runc", "secure"], "kata is had with its constraints only"
    assert found[1].overhead == {"cpu": "0.5", "mem": str(200 * MIB)}
    assert (found[1].max_devices, found[1].whole_devices) == (2, False)
    assert oci_runtime_of("secure", declared, info("kata", "runc")) == "kata"
    assert oci_runtime_of("", declared, info("kata")) == ""
    for name in ("kata", "absent", "nothing"):
        with pytest.raises(CreationDenied, match="there are runc, secure"):
            oci_runtime_of(name, declared, info("kata", "runc"))


def test_the_machine_s_own_share_is_not_the_workload_s() -> None:
    declared = {"vm": RuntimeClassSettings(runtime="kata", kind="vm", overhead_cpu=0.25)}
    config = WorkloadConfig(cpu_limit=1.25, memory_limit_bytes=1150 * MIB)
    assert without_overhead(config, "vm", declared, info("kata")) == (1.0, 1000 * MIB)
    assert without_overhead(config, "", declared, info("kata")) == (1.25, 1150 * MIB)
    assert without_overhead(WorkloadConfig(), "vm", declared, info("kata")) == (None, None)
