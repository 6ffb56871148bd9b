"""Runtime classes: the OCI runtimes of the engine by name, and what the operator declares about them.

Every OCI runtime of the engine is a class of the same name. A declaration gives it another name, the overhead of one
workload (of a virtual machine), and its restrictions. Source: spec 03-19, 10.3.
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
"""Parts of the names of runtimes that start virtual machines."""
VM_MEMORY = 150 * 1024 * 1024
"""The default memory overhead of a virtual machine (spec 03-19: 15 to 150 MB)."""


def _undeclared(runtime: str) -> RuntimeClassSettings:
    is_vm = any(name in runtime.lower() for name in VM_RUNTIMES)
    return RuntimeClassSettings(runtime=runtime, kind="vm" if is_vm else "container")


def classes_of(
    declared: Mapping[str, RuntimeClassSettings], info: RuntimeInfo
) -> dict[str, tuple[RuntimeClassSettings, str]]:
    """Map each name to its declaration and the runtime's own name. Classes that the runtime lacks are left out."""
    classes = {name: (_undeclared(name), name) for name in info.runtime_classes if _is_offered(name, declared)}
    for name, one in declared.items():
        runtime = one.runtime or name
        if runtime in info.runtime_classes:
            classes[name] = one, runtime
    return classes


def _is_offered(runtime: str, declared: Mapping[str, RuntimeClassSettings]) -> bool:
    """Return whether a runtime is offered by its own name: not if it is declared, so its restrictions always apply."""
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
    """Return the overhead of one workload of the class by slot."""
    memory = one.overhead_mem if one.overhead_mem is not None else VM_MEMORY if one.kind == "vm" else 0
    return {"cpu": Decimal(str(one.overhead_cpu)), "mem": Decimal(memory)}


def oci_runtime_of(name: str, declared: Mapping[str, RuntimeClassSettings], info: RuntimeInfo) -> str:
    """Return the runtime's own name of a class; empty for no class. Raises CreationDenied if there is no such class."""
    if not name:
        return ""
    classes = classes_of(declared, info)
    if name not in classes:
        available = ", ".join(sorted(classes)) or "none"
        raise CreationDenied(f"this node has no runtime class {name!r}; there are {available}")
    return classes[name][1]


def without_overhead(
    config: WorkloadConfig, name: str, declared: Mapping[str, RuntimeClassSettings], info: RuntimeInfo
) -> tuple[float | None, int | None]:
    """Return the limits of CPU and memory without the class's overhead, which the kernel's slots contain."""
    runtime_class = classes_of(declared, info).get(name)
    overhead = overhead_of(runtime_class[0]) if runtime_class is not None else {}
    cpu, memory = config.cpu_limit, config.memory_limit_bytes
    if cpu is not None and overhead.get("cpu"):
        cpu = max(float(Decimal(str(cpu)) - overhead["cpu"]), 0.01)
    if memory is not None and overhead.get("mem"):
        memory = max(memory - int(overhead["mem"]), 1)
    return cpu, memory
