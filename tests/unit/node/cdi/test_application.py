"""Edits of CDI devices in place of their names, for workloads that no OCI runtime starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.node.cdi.application import apply_cdi_edits
from ai.backend.node.cdi.registry import CdiRegistry
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig

NAME = "acme.com/npu=n0"
BY_NAME = DeviceMapping(source="", cdi_name=NAME)
BY_BOTH = DeviceMapping(source="/dev/null", target="/dev/npu0", cdi_name=NAME)


def registry(folder: Path, edits: dict[str, Any], common: dict[str, Any] | None = None) -> CdiRegistry:
    devices = [{"name": name, "containerEdits": edits} for name in ("n0", "n1")]
    content = {"cdiVersion": "1.1.0", "kind": "acme.com/npu", "devices": devices, "containerEdits": common or {}}
    (folder / "a.json").write_text(json.dumps(content))
    return CdiRegistry([folder])


def test_every_edit_that_a_runtime_can_apply_is_applied(tmp_path: Path) -> None:
    edits = {
        "deviceNodes": [{"path": "/dev/npu0", "hostPath": "/dev/null", "permissions": "r"}, {"path": "/dev/npuctl"}],
        "env": ["NPU=0"],
    }
    common = {
        "mounts": [
            {"hostPath": "/opt/npu/lib", "containerPath": "/opt/npu/lib", "options": ["ro", "rbind"]},
            {"hostPath": "/run/npu", "containerPath": "/run/npu"},
            {"hostPath": "/usr/lib/libnpu.so", "containerPath": "/usr/lib/libnpu.so", "options": ["ro"]},
        ],
        "additionalGids": [44],
        "env": ["NPU_HOME=/opt/npu"],
    }
    before = WorkloadConfig(devices=(DeviceMapping(source="/dev/zero", target="/dev/other"), BY_NAME), extra_gids=(7,))
    config = apply_cdi_edits(before, registry(tmp_path, edits, common), visible_folders=("/usr",))
    assert config == WorkloadConfig(
        devices=(
            DeviceMapping(source="/dev/zero", target="/dev/other"),
            DeviceMapping(source="/dev/null", target="/dev/npu0", permissions="r"),
            DeviceMapping(source="/dev/npuctl", target="/dev/npuctl"),
        ),
        mounts=(
            Mount(source="/opt/npu/lib", target="/opt/npu/lib"),
            Mount(source="/run/npu", target="/run/npu", read_only=False),
        ),
        env_vars={"NPU_HOME": "/opt/npu", "NPU": "0"},
        extra_gids=(7, 44),
    )


def test_two_devices_of_a_file_share_its_common_edits(tmp_path: Path) -> None:
    both = WorkloadConfig(devices=(BY_NAME, DeviceMapping(source="", cdi_name="acme.com/npu=n1")))
    config = apply_cdi_edits(both, registry(tmp_path, {"deviceNodes": [{"path": "/dev/npu"}]}, {"env": ["A=1"]}))
    assert (config.env_vars, len(config.devices)) == ({"A": "1"}, 1)


REFUSED = {
    "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}],
    "intelRdt": {"closID": "x"},
    "netDevices": [{"hostInterfaceName": "eth1", "name": "f"}],
    "mounts": [{"hostPath": "x", "containerPath": "/opt/x", "type": "tmpfs"}],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_hooks_and_the_like_are_refused_or_the_device_file_is_taken(tmp_path: Path, kind: str) -> None:
    found = registry(tmp_path, {kind: REFUSED[kind]})
    assert apply_cdi_edits(WorkloadConfig(devices=(BY_BOTH,)), found).devices == (
        DeviceMapping(source="/dev/null", target="/dev/npu0"),
    )
    with pytest.raises(CreationDenied, match="what this runtime does not apply") as denied:
        apply_cdi_edits(WorkloadConfig(devices=(BY_NAME,)), found)
    assert denied.value.data == {"field": "devices", "key": NAME}


def test_a_name_that_nothing_describes_is_denied_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        CreationDenied, match=f"in {tmp_path} describes '{NAME}', and it names no device file"
    ) as denied:
        apply_cdi_edits(WorkloadConfig(devices=(BY_NAME,)), CdiRegistry([tmp_path]))
    assert denied.value.data == {"field": "devices", "key": NAME}
    assert apply_cdi_edits(WorkloadConfig(devices=(BY_BOTH,)), CdiRegistry([tmp_path])).devices[0].cdi_name is None


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ({"env": ["SET=2"]}, "another value of the environment variable SET"),
        ({"env": ["BACKENDAI_KERNEL_ID=x"]}, "BACKENDAI_KERNEL_ID"),
        ({"mounts": [{"hostPath": "/", "containerPath": "/opt/host"}]}, "other sessions"),
        ({"mounts": [{"hostPath": "/etc", "containerPath": "/home/work"}]}, "nothing can be mounted"),
        ({"deviceNodes": [{"path": "/etc/passwd"}]}, "/etc/passwd"),
    ],
)
def test_edits_obey_the_rules_of_plugins(tmp_path: Path, edits: dict[str, Any], problem: str) -> None:
    with pytest.raises(CreationDenied, match=problem):
        apply_cdi_edits(WorkloadConfig(devices=(BY_NAME,), env_vars={"SET": "1"}), registry(tmp_path, edits))
