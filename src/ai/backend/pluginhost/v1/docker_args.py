"""Translates arguments of Docker's "create a container" to a WorkloadConfig, exactly or not at all.

An argument that is not in :data:`ARGUMENTS`, or has a value that its row does not know, denies the creation with its
name, unless it is empty (null, false, 0, "", [], {}). Source: Docker Engine API v1.43, ``ContainerCreate``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import msgspec

from ai.backend.common.errors import CreationDenied
from ai.backend.plugin.accelerator import DeviceMapping, Mount

_DEFAULT_PERIOD_US = 100_000
_MAX_NUMBER = 65_535


class Untranslatable(Exception):
    """Raised for an argument of Docker that has no counterpart here. The message gives the reason."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(reason)
        self.argument = argument


@dataclass
class DockerArguments:
    """Holds parsed arguments of Docker. Sizes are bytes, ``cpu`` is in cores, ``quota`` and ``period`` microseconds."""

    runtime: Literal["container", "process_tree"]
    env_vars: dict[str, str] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    devices: list[DeviceMapping] = field(default_factory=list)
    gids: list[int] = field(default_factory=list)
    cpuset: tuple[int, ...] = ()
    memory_nodes: tuple[int, ...] = ()
    cpu: Decimal | None = None
    quota: int | None = None
    period: int | None = None
    memory: int | None = None
    memory_and_swap: int | None = None

    @property
    def cpu_limit(self) -> float | None:
        """Returns the limit in cores. Raises Untranslatable for limits that contradict each other."""
        if self.period is not None and self.quota is None:
            raise Untranslatable("HostConfig.CpuPeriod", "means nothing without CpuQuota")
        if self.quota is None:
            return None if self.cpu is None else float(self.cpu)
        if self.cpu is not None:
            raise Untranslatable("HostConfig.CpuQuota", "cannot be set together with another limit of cores")
        return self.quota / (self.period or _DEFAULT_PERIOD_US)

    @property
    def memory_limit_bytes(self) -> int | None:
        """Returns the limit of memory. Raises Untranslatable for a limit of swap: sessions have none."""
        if self.memory_and_swap not in (None, self.memory):
            raise Untranslatable("HostConfig.MemorySwap", "is not equal to Memory: sessions have no swap")
        return self.memory


def translate(arguments: object, *, runtime: Literal["container", "process_tree"]) -> DockerArguments:
    """Parses the result of ``generate_docker_args``. Raises Untranslatable if an argument has no counterpart."""
    docker_arguments = DockerArguments(runtime)
    value_by_path = dict(_table_at(arguments, "as a whole"))
    for key, value in _table_at(value_by_path.pop("HostConfig", None) or {}, "HostConfig").items():
        value_by_path[f"HostConfig.{key}"] = value
    for path, value in value_by_path.items():
        if _is_empty(value):
            continue
        argument = ARGUMENTS.get(path)
        if argument is None:
            raise Untranslatable(path, "has no counterpart here")
        argument.read(docker_arguments, value, path)
    _ = docker_arguments.cpu_limit, docker_arguments.memory_limit_bytes
    return docker_arguments


def denial_of(plugin_key: str, error: Untranslatable) -> CreationDenied:
    return CreationDenied(
        f"the v1 plugin {plugin_key} wants the Docker argument {error.argument}, which {error}",
        data={"plugin": plugin_key, "argument": error.argument},
    )


def _is_empty(value: object) -> bool:
    return value is None or value is False or value in (0, "") or (isinstance(value, Sequence | Mapping) and not value)


def _table_at(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise Untranslatable(path, f"is {value!r:.60} instead of a mapping")
    return value


def _list_at(value: object, path: str) -> Sequence[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise Untranslatable(path, f"is {value!r:.60} instead of a list")
    return value


def _text_at(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise Untranslatable(path, f"has {value!r:.60} where a text belongs")
    return value


def _positive_number(value: object, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or value != int(value) or value <= 0:
        raise Untranslatable(path, f"is {value!r:.60} instead of a positive whole number")
    return int(value)


def _require_keys(table: Mapping[str, Any], allowed_keys: Sequence[str], path: str) -> Mapping[str, Any]:
    for key, value in table.items():
        if key not in allowed_keys and not _is_empty(value):
            raise Untranslatable(f"{path}.{key}", "has no counterpart here")
    return table


def _add_variables(docker_arguments: DockerArguments, value: object, path: str) -> None:
    for variable_line in _list_at(value, path):
        variable_name, separator, variable_value = _text_at(variable_line, path).partition("=")
        if not separator:
            raise Untranslatable(path, f"has {variable_name[:60]!r} without a value, which would unset a variable")
        docker_arguments.env_vars[variable_name] = variable_value


def _add_devices(docker_arguments: DockerArguments, value: object, path: str) -> None:
    allowed_keys = ("PathOnHost", "PathInContainer", "CgroupPermissions")
    for device_table in _list_at(value, path):
        device = _require_keys(_table_at(device_table, path), allowed_keys, path)
        source = _text_at(device.get("PathOnHost"), f"{path}.PathOnHost")
        target = _text_at(device.get("PathInContainer") or source, f"{path}.PathInContainer")
        permissions = _text_at(device.get("CgroupPermissions") or "rwm", f"{path}.CgroupPermissions")
        docker_arguments.devices.append(
            DeviceMapping(source=source, target=None if target == source else target, permissions=permissions)
        )


_GPU_CAPABILITIES = frozenset(
    {"gpu", "nvidia", "compute", "utility", "video", "graphics", "display", "compat32", "ngx"}
)


def _add_device_requests(docker_arguments: DockerArguments, value: object, path: str) -> None:
    """Translates device requests to CDI names: the driver cdi uses full names, nvidia ids."""
    for request_table in _list_at(value, path):
        request = _require_keys(_table_at(request_table, path), ("Driver", "DeviceIDs", "Capabilities"), path)
        driver = _text_at(request.get("Driver") or "nvidia", f"{path}.Driver")
        device_ids = [_text_at(name, f"{path}.DeviceIDs") for name in _list_at(request.get("DeviceIDs") or (), path)]
        if driver not in ("cdi", "nvidia"):
            raise Untranslatable(f"{path}.Driver", f"is {driver[:60]!r}: only nvidia and cdi are known")
        if not device_ids:
            raise Untranslatable(f"{path}.DeviceIDs", "names no device: how many, or all, cannot be said here")
        if docker_arguments.runtime != "container":
            raise Untranslatable(path, "needs a container engine; this agent's workloads are process trees")
        for capability_set in _list_at(request.get("Capabilities") or (), f"{path}.Capabilities"):
            if unknown_capabilities := sorted(
                {str(name) for name in _list_at(capability_set, path)} - _GPU_CAPABILITIES
            ):
                raise Untranslatable(
                    f"{path}.Capabilities", f"names {unknown_capabilities[0][:60]!r}, which is not known"
                )
        name_prefix = "" if driver == "cdi" else "nvidia.com/gpu="
        docker_arguments.devices += [DeviceMapping(source="", cdi_name=f"{name_prefix}{name}") for name in device_ids]


def _add_binds(docker_arguments: DockerArguments, value: object, path: str) -> None:
    for bind_line in _list_at(value, path):
        bind_parts = _text_at(bind_line, path).split(":")
        if not 2 <= len(bind_parts) <= 3 or not bind_parts[0].startswith("/"):
            raise Untranslatable(path, f"has {bind_line[:80]!r}, which is no SOURCE:TARGET[:ro|rw] with absolute paths")
        mode = bind_parts[2] if len(bind_parts) == 3 else "rw"
        if mode not in ("ro", "rw"):
            raise Untranslatable(path, f"has the option {mode[:60]!r}: only ro and rw are known")
        docker_arguments.mounts.append(Mount(source=bind_parts[0], target=bind_parts[1], read_only=mode == "ro"))


def _add_mounts(docker_arguments: DockerArguments, value: object, path: str) -> None:
    for item in _list_at(value, path):
        mount = _require_keys(_table_at(item, path), ("Type", "Source", "Target", "ReadOnly"), path)
        if mount.get("Type") != "bind":
            raise Untranslatable(f"{path}.Type", f"is {mount.get('Type')!r:.60}: only bind is known")
        source, target = (_text_at(mount.get(key), f"{path}.{key}") for key in ("Source", "Target"))
        docker_arguments.mounts.append(Mount(source=source, target=target, read_only=bool(mount.get("ReadOnly"))))


def _add_groups(docker_arguments: DockerArguments, value: object, path: str) -> None:
    for group in _list_at(value, path):
        group_text = str(group)
        if isinstance(group, bool) or not (group_text.isascii() and group_text.isdecimal()):
            raise Untranslatable(path, f"has {group_text[:60]!r}: only numbers of groups mean the same on every image")
        docker_arguments.gids.append(int(group_text))


def _parse_numbers(value: object, path: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for range_text in _text_at(value, path).split(","):
        first_text, separator, last_text = range_text.partition("-")
        range_ends = [
            int(end_text) if end_text.isascii() and end_text.isdecimal() else -1
            for end_text in (first_text, last_text if separator else first_text)
        ]
        if not 0 <= range_ends[0] <= range_ends[1] <= _MAX_NUMBER:
            raise Untranslatable(path, f"has {range_text[:60]!r}, which is no number and no range")
        numbers += range(range_ends[0], range_ends[1] + 1)
    return tuple(dict.fromkeys(numbers))


def _add_cores(docker_arguments: DockerArguments, value: object, path: str) -> None:
    try:
        cores = Decimal(str(value))
    except InvalidOperation:
        cores = Decimal(0)
    _set_cores(docker_arguments, cores, value, path)


def _add_nano_cores(docker_arguments: DockerArguments, value: object, path: str) -> None:
    _set_cores(docker_arguments, Decimal(_positive_number(value, path)) / 10**9, value, path)


def _set_cores(docker_arguments: DockerArguments, cores: Decimal, raw_value: object, path: str) -> None:
    if not cores.is_finite() or cores <= 0:
        raise Untranslatable(path, f"is {raw_value!r:.60}, which is no number of cores")
    if docker_arguments.cpu not in (None, cores):
        raise Untranslatable(path, "contradicts another limit of cores")
    docker_arguments.cpu = cores


def _setter_of(attribute: str, parse: Callable[[object, str], Any]) -> Callable[[DockerArguments, object, str], None]:
    def set_attribute(docker_arguments: DockerArguments, value: object, path: str) -> None:
        setattr(docker_arguments, attribute, parse(value, path))

    return set_attribute


class Argument(msgspec.Struct, frozen=True):
    """Describes how one argument of Docker is translated.

    ``becomes`` is its row in docs/reference/accelerators/legacy.md.
    """

    read: Callable[[DockerArguments, object, str], None]
    becomes: str


ARGUMENTS: Mapping[str, Argument] = {
    "Env": Argument(_add_variables, "`env_vars`; each item is `NAME=VALUE`"),
    "HostConfig.Binds": Argument(_add_binds, "`mounts`; absolute paths, with no option, `ro` or `rw`"),
    "HostConfig.CpuPeriod": Argument(_setter_of("period", _positive_number), "with `CpuQuota`; 100000 if absent"),
    "HostConfig.CpuQuota": Argument(_setter_of("quota", _positive_number), "`cpu_limit`: the quota by the period"),
    "HostConfig.Cpus": Argument(_add_cores, "`cpu_limit`"),
    "HostConfig.CpusetCpus": Argument(_setter_of("cpuset", _parse_numbers), "`cpuset`; as `0-2,5`"),
    "HostConfig.CpusetMems": Argument(_setter_of("memory_nodes", _parse_numbers), "`memory_nodes`; as `0-1`"),
    "HostConfig.DeviceRequests": Argument(
        _add_device_requests,
        "`devices` by CDI name, of the drivers `cdi` and `nvidia` (`nvidia.com/gpu=ID`), with `DeviceIDs`, not with a "
        "`Count`; only where workloads are containers",
    ),
    "HostConfig.Devices": Argument(_add_devices, "`devices`; `CgroupPermissions` is `rwm` if absent"),
    "HostConfig.GroupAdd": Argument(_add_groups, "`extra_gids`; numbers only"),
    "HostConfig.Memory": Argument(_setter_of("memory", _positive_number), "`memory_limit_bytes`"),
    "HostConfig.MemorySwap": Argument(
        _setter_of("memory_and_swap", _positive_number), "nothing: it must equal `Memory`, for there is no swap"
    ),
    "HostConfig.Mounts": Argument(_add_mounts, "`mounts`; of type `bind` with `Source`, `Target`, `ReadOnly` only"),
    "HostConfig.NanoCpus": Argument(_add_nano_cores, "`cpu_limit`"),
}
