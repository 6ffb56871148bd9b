"""What an agent offers as runtime classes, of what its runtime lists and its operator declares."""

from __future__ import annotations

import pytest

from ai.backend.agent.config.settings import RuntimeClassSettings
from ai.backend.agent.lifecycle.workload_config import oci_runtime_of, reports_of, without_overhead
from ai.backend.common.errors import CreationDenied
from ai.backend.common.structs import replace
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
        name="kata-fc",
        kind="vm",
        overhead={"mem": str(150 * MIB)},
        whole_devices=True,
        max_devices=1,
        host_network=False,
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


def test_the_handler_of_a_class_tells_what_its_name_does_not() -> None:
    """In a cluster, classes have the names that their administrator likes."""
    cluster = replace(
        info("safe", "strict", "plain"),
        class_handlers={"safe": "kata-qemu", "strict": "runsc", "plain": "runc"},
        class_overheads={"safe": 200 << 20},
    )
    plain, safe, strict = reports_of({}, cluster)
    assert (safe.kind, safe.max_devices, safe.whole_devices, safe.overhead) == ("vm", 1, True, {"mem": str(200 << 20)})
    assert strict.max_devices == 0
    assert plain == RuntimeClassReport(name="plain")


def test_the_overhead_that_a_cluster_counts_is_taken_off_the_limits() -> None:
    cluster = replace(info("kata"), class_overheads={"kata": 200 << 20})
    config = WorkloadConfig(cpu_limit=2.0, memory_limit_bytes=1 << 30)
    assert without_overhead(config, "kata", {}, cluster) == (2.0, (1 << 30) - (200 << 20))
    declared = {"kata": RuntimeClassSettings(kind="vm", overhead_mem=100 << 20)}
    assert without_overhead(config, "kata", declared, cluster) == (2.0, (1 << 30) - (100 << 20)), "the operator's word"


def test_machines_mount_no_parts_of_volumes_unless_their_operator_says_so() -> None:
    pods = replace(info("kata", "runc"), mounts_sub_paths=True)
    assert {one.name: (one.folders, one.host_network) for one in reports_of({}, pods)} == {
        "kata": (False, False),
        "runc": (True, True),
    }
    assert [one.folders for one in reports_of({}, info("kata"))] == [True], "Docker binds whole directories"
    declared = {"kata": RuntimeClassSettings(kind="vm", folders=True)}
    assert [one.folders for one in reports_of(declared, replace(pods, runtime_classes=("kata",)))] == [True]
    declared = {"runc": RuntimeClassSettings(folders=False)}
    assert [one.folders for one in reports_of(declared, info("runc"))] == [False]
