"""The environment variables and small files that describe a kernel to its programs (peer facts 2.6, 2.7)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.slots import BinarySize, ResourceSlot, format_quantity
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.plugin.accelerator import AttachedDevice, Mount, WorkloadConfig

CONFIG_DIR = "/home/config"
BOOTSTRAP_PATH = f"{CONFIG_DIR}/bootstrap.sh"


def platform_environ(spec: KernelSpec) -> dict[str, str]:
    """Return the variables that describe the kernel, its session, its user and its cluster."""
    cluster = spec.cluster
    return {
        "BACKENDAI_KERNEL_ID": spec.kernel_id,
        "BACKENDAI_SESSION_ID": spec.session_id,
        "BACKENDAI_SESSION_NAME": spec.session_name,
        "BACKENDAI_KERNEL_IMAGE": spec.image,
        "BACKENDAI_USER_UUID": spec.user_id,
        "BACKENDAI_USER_EMAIL": spec.user_email,
        "BACKENDAI_ACCESS_KEY": spec.access_key,
        "BACKENDAI_CLUSTER_MODE": cluster.mode.value,
        "BACKENDAI_CLUSTER_SIZE": str(cluster.size),
        "BACKENDAI_CLUSTER_REPLICAS": ",".join(f"{role}:{count}" for role, count in cluster.replicas.items()),
        "BACKENDAI_CLUSTER_HOSTS": ",".join(cluster.hosts),
        "BACKENDAI_CLUSTER_HOST": spec.cluster_hostname,
        "BACKENDAI_CLUSTER_ROLE": spec.cluster_role,
        "BACKENDAI_CLUSTER_IDX": str(spec.cluster_idx),
        "BACKENDAI_CLUSTER_LOCAL_RANK": str(spec.local_rank),
        "BACKENDAI_PREOPEN_PORTS": ",".join(map(str, spec.preopen_ports)),
    }


def gpu_environ(attached: Mapping[str, list[AttachedDevice]]) -> dict[str, str]:
    """Return the variables about the first kind of accelerator that the kernel holds."""
    for key, devices in attached.items():
        if key in ("cpu", "mem") or not devices:
            continue
        sizes = [int(device.data.get("mem") or 0) for device in devices]
        return {
            "GPU_TYPE": key,
            "GPU_MODEL_NAME": devices[0].model_name,
            "GPU_COUNT": str(len(devices)),
            "N_GPUS": str(len(devices)),
            "GPU_CONFIG": ",".join(f"{i}:{size}" for i, size in enumerate(sizes)),
        }
    return {}


def kernel_environ(
    spec: KernelSpec, config: WorkloadConfig, attached: Mapping[str, list[AttachedDevice]]
) -> dict[str, str]:
    """Return the whole environment. The user's variables never override those of the platform or of a plugin."""
    return {**spec.environ, **gpu_environ(attached), **config.env_vars, **platform_environ(spec)}


def resource_txt(spec: KernelSpec, allocation: DeviceAllocation, config: WorkloadConfig) -> str:
    """Return ``resource.txt``: the kernel's resources, one KEY=VALUE a line."""
    mounts = [(m.source, m.target, "ro" if m.read_only else "rw") for m in spec.mounts]
    slots = ResourceSlot.parse(dict(spec.slots)).to_json()
    lines = [
        "SCRATCH_SIZE=0m",
        "MOUNTS=" + ",".join(":".join(_escape(part) for part in mount) for mount in mounts),
        "SLOTS=" + json.dumps(slots, sort_keys=True),
        "UNIFIED_DEVICES=[]",
    ]
    for slot, devices in sorted(allocation.slots.items()):
        amounts = (
            f"{device}:{BinarySize(int(amount)) if slot == 'mem' else format_quantity(amount)}"
            for device, amount in devices.items()
        )
        lines.append(f"{slot.upper()}_SHARES={','.join(amounts)}")
    lines += [f"{key}={value}" for key, value in config.resource_data.items()]
    lines.append(f"KID={spec.kernel_id}")
    return "\n".join(line.replace("\n", " ") for line in lines) + "\n"


def _escape(text: str) -> str:
    """Percent-encode the separators of MOUNTS in a path, so that the line can be parsed."""
    return text.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


def config_files(
    spec: KernelSpec, environ: Mapping[str, str], allocation: DeviceAllocation, config: WorkloadConfig
) -> dict[str, bytes]:
    """Return the files to write into the workload, by path."""
    cluster = {
        "mode": spec.cluster.mode.value,
        "size": spec.cluster.size,
        "replicas": spec.cluster.replicas,
        "hosts": spec.cluster.hosts,
    }
    quoted = {key: value.replace("\\", "\\\\").replace("\n", "\\n") for key, value in environ.items()}
    files = {
        f"{CONFIG_DIR}/resource.txt": resource_txt(spec, allocation, config),
        f"{CONFIG_DIR}/environ.txt": "".join(f"{key}={value}\n" for key, value in quoted.items()),
        f"{CONFIG_DIR}/cluster.json": json.dumps(cluster) + "\n",
    }
    if spec.bootstrap_script:
        files[BOOTSTRAP_PATH] = spec.bootstrap_script
    return {path: text.encode() for path, text in files.items()}


def user_mounts(spec: KernelSpec) -> WorkloadConfig:
    """Return the session's mounts as a config."""
    return WorkloadConfig(
        mounts=tuple(Mount(source=m.source, target=m.target, read_only=m.read_only) for m in spec.mounts)
    )
