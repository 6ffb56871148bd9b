"""Builds the config, files, environment and runtime class of a workload (peer facts 2.6 and 2.7; spec 03-19, 10.3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeVar

from ai.backend.agent.config.settings import RuntimeClassSettings
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import CreationDenied
from ai.backend.common.slots import BinarySize, ResourceSlot, format_quantity
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.reports import RuntimeClassReport
from ai.backend.plugin.accelerator import AttachedDevice, DeviceMapping, Mount, WorkloadConfig
from ai.backend.plugin.runtime import RuntimeInfo

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
AGENT = "the agent"
"""The author of the agent's own config."""

NEEDS_CONSENT = frozenset({"io_uring_enter", "io_uring_register", "io_uring_setup", "perf_event_open"})
"""System calls that do not open the sandbox by themselves, but lead to kernel code with a history of exploits."""

_AuthoredConfig = tuple[str, WorkloadConfig]
CONFIG_DIR = "/home/config"
BOOTSTRAP_PATH = f"{CONFIG_DIR}/bootstrap.sh"
VM_RUNTIMES = ("kata", "firecracker", "runq")
"""Parts of the names of runtimes that start virtual machines."""
GVISOR_RUNTIMES = ("runsc", "gvisor")
"""Parts of the names of runtimes that are gVisor."""
VM_MEMORY = 150 * 1024 * 1024
"""The default memory overhead of a virtual machine (spec 03-19: 15 to 150 MB)."""


def _conflict(config_field: str, key: object, first_author: str, second_author: str) -> CreationDenied:
    subject = (
        f"the plugins {first_author} and {second_author} want"
        if first_author != second_author
        else f"the plugin {first_author} wants"
    )
    return CreationDenied(
        f"{subject} different values of {config_field} {key}",
        data={"plugins": [first_author, second_author], "field": config_field, "key": str(key)},
    )


def _merge(config_field: str, authored_values: Iterable[tuple[str, Iterable[tuple[str, T]]]]) -> dict[str, T]:
    merged: dict[str, T] = {}
    authors: dict[str, str] = {}
    for author, values in authored_values:
        for key, value in values:
            if key in merged and merged[key] != value:
                raise _conflict(config_field, key, authors[key], author)
            merged.setdefault(key, value)
            authors.setdefault(key, author)
    return merged


def _single_value(config_field: str, authored_values: Iterable[tuple[str, T | None]]) -> T | None:
    return _merge(
        config_field, ((author, [(config_field, value)]) for author, value in authored_values if value is not None)
    ).get(config_field)


def _union_of(sequences: Iterable[Sequence[H]]) -> tuple[H, ...]:
    return tuple(dict.fromkeys(item for values in sequences for item in values))


def _value_of_only_author(config_field: str, authored_values: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[int, ...]:
    return (
        _single_value(config_field, ((author, tuple(sorted(value)) or None) for author, value in authored_values)) or ()
    )


def _device_key(device: DeviceMapping) -> str:
    return device.cdi_name or device.target or device.source


def merge_configs(authored_configs: Sequence[_AuthoredConfig]) -> WorkloadConfig:
    """Merges the configs of all plugins in their order. Mounts are sorted parents first, so that none hides another.

    Raises CreationDenied, naming both plugins, for different values of one variable, target, resource key or limit.
    """
    mounts = _merge(
        "mount", ((author, [(mount.target, mount) for mount in config.mounts]) for author, config in authored_configs)
    )
    return WorkloadConfig(
        mounts=tuple(mount for _, mount in sorted(mounts.items())),
        devices=tuple(
            _merge(
                "device",
                (
                    (author, [(_device_key(device), device) for device in config.devices])
                    for author, config in authored_configs
                ),
            ).values()
        ),
        env_vars=_merge(
            "environment variable", ((author, config.env_vars.items()) for author, config in authored_configs)
        ),
        resource_data=_merge(
            "resource data", ((author, config.resource_data.items()) for author, config in authored_configs)
        ),
        networks=_union_of(config.networks for _, config in authored_configs),
        extra_gids=_union_of(config.extra_gids for _, config in authored_configs),
        extra_syscalls=_union_of(config.extra_syscalls for _, config in authored_configs),
        ipc=_single_value("ipc", ((author, config.ipc) for author, config in authored_configs)),
        cpuset=_value_of_only_author("cpuset", ((author, config.cpuset) for author, config in authored_configs)),
        memory_nodes=_value_of_only_author(
            "memory_nodes", ((author, config.memory_nodes) for author, config in authored_configs)
        ),
        cpu_limit=_single_value("cpu_limit", ((author, config.cpu_limit) for author, config in authored_configs)),
        memory_limit_bytes=_single_value(
            "memory_limit_bytes", ((author, config.memory_limit_bytes) for author, config in authored_configs)
        ),
    )


def check_consent(config: WorkloadConfig, consented_calls: Collection[str]) -> None:
    """Checks a config's system calls. Raises CreationDenied for a call without the consent of the node's operator."""
    for name in config.extra_syscalls:
        if name in NEEDS_CONSENT and name not in consented_calls:
            raise CreationDenied(
                f"the system call {name!r} is allowed only where the node's operator names it in"
                " `agent.consented-syscalls`",
                data={"field": "extra_syscalls", "key": name},
            )


_KEY_OF_FIELD: dict[str, Callable[[Any], str]] = {
    "mounts": lambda mount: mount.target,
    "devices": _device_key,
    "extra_syscalls": str,
    "networks": str,
    "ipc": str,
}


def _items_of(value: Any) -> Sequence[Any]:
    """Returns the items of a config's field, as a sequence also for a field with a single value."""
    return (value,) if isinstance(value, str) else value or ()


def with_authors(error: CreationDenied, authored_configs: Sequence[_AuthoredConfig]) -> CreationDenied:
    """Returns the error with the names of the plugins whose configs contain the refused item.

    The plugins are added to the message and to ``error.data``; the item is named by ``field`` and ``key`` there.
    """
    config_field, refused_key = str(error.data.get("field")), error.data.get("key")
    key_of_item = _KEY_OF_FIELD.get(config_field)
    authors = [
        author
        for author, config in authored_configs
        if key_of_item is not None
        and author != AGENT
        and any(key_of_item(item) == refused_key for item in _items_of(getattr(config, config_field)))
    ]
    if not authors:
        return error
    return CreationDenied(
        f"the plugin {' and '.join(authors)}: {error.message}", data={**error.data, "plugins": authors}
    )


def platform_environ(spec: KernelSpec) -> dict[str, str]:
    """Returns the variables that describe the kernel, its session, its user and its cluster."""
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


def memory_bytes_of(spec: KernelSpec) -> int:
    """Returns the memory limit of a kernel; 0 without a limit."""
    memory = ResourceSlot.parse(dict(spec.slots)).get("mem", Decimal(0))
    return int(memory) if memory.is_finite() else 0


def core_count_environ(spec: KernelSpec, labels: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that an image names for the number of cores, with the kernel's number of cores.

    They limit the threads of numeric libraries. The image's label ``ai.backend.envs.corecount`` names them (spec
    03-05:102).
    """
    cores = ResourceSlot.parse(dict(spec.slots)).get("cpu", Decimal(0))
    names = labels.get("ai.backend.envs.corecount", "").split(",") if cores.is_finite() and cores > 0 else []
    return {name.strip(): str(max(1, int(cores))) for name in names if name.strip().isidentifier()}


def gpu_environ(attached: Mapping[str, list[AttachedDevice]]) -> dict[str, str]:
    for key, devices in attached.items():
        if key in ("cpu", "mem") or not devices:
            continue
        sizes_bytes = [int(device.data.get("mem") or 0) for device in devices]
        return {
            "GPU_TYPE": key,
            "GPU_MODEL_NAME": devices[0].model_name,
            "GPU_COUNT": str(len(devices)),
            "N_GPUS": str(len(devices)),
            "GPU_CONFIG": ",".join(f"{index}:{size_bytes}" for index, size_bytes in enumerate(sizes_bytes)),
        }
    return {}


def kernel_environ(
    spec: KernelSpec,
    config: WorkloadConfig,
    attached: Mapping[str, list[AttachedDevice]],
    image_labels: Mapping[str, str],
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Returns a kernel's environment. The user's variables and ``secrets`` override those for the image's libraries,
    and never variables of the platform or a plugin."""
    return {
        **core_count_environ(spec, image_labels),
        **spec.environ,
        **secrets,
        **gpu_environ(attached),
        **config.env_vars,
        **platform_environ(spec),
    }


def resource_txt(spec: KernelSpec, allocation: DeviceAllocation, config: WorkloadConfig) -> str:
    """Returns ``resource.txt``: the kernel's resources, one KEY=VALUE a line."""
    mounts = [(mount.source, mount.target, "ro" if mount.read_only else "rw") for mount in spec.mounts]
    slots = ResourceSlot.parse(dict(spec.slots)).to_json()
    lines = [
        "SCRATCH_SIZE=0m",
        "MOUNTS=" + ",".join(":".join(_escape_separators(mount_field) for mount_field in mount) for mount in mounts),
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


def _escape_separators(text: str) -> str:
    return text.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")


def config_files(
    spec: KernelSpec, environ: Mapping[str, str], allocation: DeviceAllocation, config: WorkloadConfig
) -> dict[str, bytes]:
    """Returns the files to write into the workload, by path."""
    cluster_json = {
        "mode": spec.cluster.mode.value,
        "size": spec.cluster.size,
        "replicas": spec.cluster.replicas,
        "hosts": spec.cluster.hosts,
    }
    quoted_environ = {key: value.replace("\\", "\\\\").replace("\n", "\\n") for key, value in environ.items()}
    files = {
        f"{CONFIG_DIR}/resource.txt": resource_txt(spec, allocation, config),
        f"{CONFIG_DIR}/environ.txt": "".join(f"{key}={value}\n" for key, value in quoted_environ.items()),
        f"{CONFIG_DIR}/cluster.json": json.dumps(cluster_json) + "\n",
    }
    if spec.bootstrap_script:
        files[BOOTSTRAP_PATH] = spec.bootstrap_script
    return {path: text.encode() for path, text in files.items()}


def user_mounts(spec: KernelSpec) -> WorkloadConfig:
    return WorkloadConfig(
        mounts=tuple(
            Mount(source=mount.source, target=mount.target, read_only=mount.read_only) for mount in spec.mounts
        )
    )


def _undeclared_class(runtime: str, handler: str) -> RuntimeClassSettings:
    """Returns a declaration for a runtime class that the settings do not declare.

    The class counts as a virtual machine if its handler's name is that of one.
    """
    is_vm = any(vm_name in handler.lower() for vm_name in VM_RUNTIMES)
    return RuntimeClassSettings(runtime=runtime, kind="vm" if is_vm else "container")


def _device_limit(declaration: RuntimeClassSettings, runtime: str) -> int | None:
    """Returns the largest number of accelerators of a kernel in this runtime class. It is 0 in gVisor unless the
    operator has set a limit.

    What gVisor implements of a driver depends on how it was built and is set up (its `nvproxy`).
    """
    is_gvisor = any(gvisor_name in runtime.lower() for gvisor_name in GVISOR_RUNTIMES)
    return 0 if is_gvisor and declaration.max_devices is None else declaration.device_limit


def _takes_folders(declaration: RuntimeClassSettings, info: RuntimeInfo) -> bool:
    """Returns True if sessions of a runtime class may mount virtual folders, by its declaration or by its kind.

    A virtual machine mounts whole volumes only (spec 03-19).
    """
    if declaration.folders is not None:
        return declaration.folders
    return declaration.kind != "vm" or not info.mounts_sub_paths


def classes_of(
    declared_classes: Mapping[str, RuntimeClassSettings], info: RuntimeInfo
) -> dict[str, tuple[RuntimeClassSettings, str]]:
    """Maps the name of each runtime class to its declaration and to the runtime's own name. A class is left out if the
    runtime lacks it.
    """
    classes = {
        name: (_undeclared_class(name, info.class_handlers.get(name, name)), name)
        for name in info.runtime_classes
        if _is_offered(name, declared_classes)
    }
    for name, declaration in declared_classes.items():
        runtime = declaration.runtime or name
        if runtime in info.runtime_classes:
            classes[name] = declaration, runtime
    return classes


def _is_offered(runtime: str, declared_classes: Mapping[str, RuntimeClassSettings]) -> bool:
    """Returns True if sessions may ask for a runtime by its own name: no class of the settings stands for it."""
    return all((declaration.runtime or name) != runtime for name, declaration in declared_classes.items())


def reports_of(declared_classes: Mapping[str, RuntimeClassSettings], info: RuntimeInfo) -> list[RuntimeClassReport]:
    return [
        RuntimeClassReport(
            name=name,
            kind=declaration.kind,
            overhead={
                slot: format_quantity(amount)
                for slot, amount in overhead_of(declaration, info.class_overheads.get(runtime)).items()
                if amount
            },
            whole_devices=declaration.needs_whole_devices,
            max_devices=_device_limit(declaration, info.class_handlers.get(runtime, runtime)),
            folders=_takes_folders(declaration, info),
            host_network=declaration.kind != "vm",
        )
        for name, (declaration, runtime) in sorted(classes_of(declared_classes, info).items())
    ]


def overhead_of(declaration: RuntimeClassSettings, reported_bytes: int | None = None) -> dict[str, Decimal]:
    """Returns, by slot, the CPU and memory that a workload of a runtime class needs beside its own.

    The declaration takes precedence over the memory that the runtime reports.
    """
    default_bytes = VM_MEMORY if declaration.kind == "vm" else 0
    if reported_bytes is not None:
        default_bytes = reported_bytes
    memory_bytes = default_bytes if declaration.overhead_mem is None else declaration.overhead_mem
    return {"cpu": Decimal(str(declaration.overhead_cpu)), "mem": Decimal(memory_bytes)}


def oci_runtime_of(name: str, declared_classes: Mapping[str, RuntimeClassSettings], info: RuntimeInfo) -> str:
    """Returns the name of the OCI runtime of a runtime class, or an empty text for no class.

    Raises CreationDenied for an unknown class.
    """
    if not name:
        return ""
    classes = classes_of(declared_classes, info)
    if name not in classes:
        available_names = ", ".join(sorted(classes)) or "none"
        raise CreationDenied(f"this node has no runtime class {name!r}; there are {available_names}")
    return classes[name][1]


def without_overhead(
    config: WorkloadConfig, name: str, declared_classes: Mapping[str, RuntimeClassSettings], info: RuntimeInfo
) -> tuple[float | None, int | None]:
    """Returns the limits of CPU and memory of a workload, reduced by the overhead of its runtime class.

    The kernel's slots contain the overhead.
    """
    runtime_class = classes_of(declared_classes, info).get(name)
    overhead = (
        overhead_of(runtime_class[0], info.class_overheads.get(runtime_class[1])) if runtime_class is not None else {}
    )
    cpu, memory = config.cpu_limit, config.memory_limit_bytes
    if cpu is not None and overhead.get("cpu"):
        cpu = max(float(Decimal(str(cpu)) - overhead["cpu"]), 0.01)
    if memory is not None and overhead.get("mem"):
        memory = max(memory - int(overhead["mem"]), 1)
    return cpu, memory
