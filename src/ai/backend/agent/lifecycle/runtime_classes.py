"""Runtime classes: what the runtime here can be asked for by name, and what the operator declares of it.

Every OCI runtime that the engine has is a class of its own name; a declaration gives it another name, what one of its
workloads costs beyond its own (the overhead of a virtual machine), and what it cannot do. Source: spec 03-19, 10.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from ai.backend.agent.config.settings import RuntimeClassSettings
from ai.backend.common.errors import CreationDenied
from ai.backend.common.slots import format_quantity
from ai.backend.common.wire.reports import RuntimeClassReport
from ai.backend.plugin.accelerator import WorkloadConfig
from ai.backend.plugin.runtime import RuntimeInfo

VM_RUNTIMES = ("kata", "firecracker", "runq")
"""Parts of the names of runtimes that are known to make virtual machines."""
VM_MEMORY = 150 * 1024 * 1024
"""What a virtual machine needs for itself unless the operator says otherwise (spec 03-19: 15 to 150 MB)."""


def _undeclared(runtime: str) -> RuntimeClassSettings:
    is_vm = any(name in runtime.lower() for name in VM_RUNTIMES)
    return RuntimeClassSettings(runtime=runtime, kind="vm" if is_vm else "container")


def classes_of(
    declared: Mapping[str, RuntimeClassSettings], info: RuntimeInfo
) -> dict[str, tuple[RuntimeClassSettings, str]]:
    """By name: the declaration, and what the runtime calls it. Declared ones that the runtime lacks are left out."""
    found = {name: (_undeclared(name), name) for name in info.runtime_classes if _is_offered(name, declared)}
    for name, one in declared.items():
        runtime = one.runtime or name
        if runtime in info.runtime_classes:
            found[name] = one, runtime
    return found


def _is_offered(runtime: str, declared: Mapping[str, RuntimeClassSettings]) -> bool:
    """What is declared under another name is had by that name only: its constraints cannot be walked around."""
    return all((one.runtime or name) != runtime for name, one in declared.items())


def reports_of(declared: Mapping[str, RuntimeClassSettings], info: RuntimeInfo) -> list[RuntimeClassReport]:
    return [
        RuntimeClassReport(
            name=name,
            kind=one.kind,
            overhead={slot: format_quantity(amount) for slot, amount in overhead_of(one).items() if amount},
            whole_devices=one.needs_whole_devices,
            max_devices=one.device_limit,
        )
        for name, (one, _) in sorted(classes_of(declared, info).items())
    ]


def overhead_of(one: RuntimeClassSettings) -> dict[str, Decimal]:
    """What one workload of the class costs beyond its own, by slot."""
    memory = one.overhead_mem if one.overhead_mem is not None else VM_MEMORY if one.kind == "vm" else 0
    return {"cpu": Decimal(str(one.overhead_cpu)), "mem": Decimal(memory)}


def asked_of_runtime(name: str, declared: Mapping[str, RuntimeClassSettings], info: RuntimeInfo) -> str:
    """What the runtime calls the class; empty for no class. Raises CreationDenied if it is not here."""
    if not name:
        return ""
    known = classes_of(declared, info)
    if name not in known:
        there_are = ", ".join(sorted(known)) or "none"
        raise CreationDenied(f"this node has no runtime class {name!r}; there are {there_are}")
    return known[name][1]


def without_overhead(
    config: WorkloadConfig, name: str, declared: Mapping[str, RuntimeClassSettings], info: RuntimeInfo
) -> tuple[float | None, int | None]:
    """Limits of CPU and memory for the workload itself: the slots of the kernel contain the class's overhead."""
    known = classes_of(declared, info).get(name)
    overhead = overhead_of(known[0]) if known is not None else {}
    cpu, memory = config.cpu_limit, config.memory_limit_bytes
    if cpu is not None and overhead.get("cpu"):
        cpu = max(float(Decimal(str(cpu)) - overhead["cpu"]), 0.01)
    if memory is not None and overhead.get("mem"):
        memory = max(memory - int(overhead["mem"]), 1)
    return cpu, memory
