"""The steps that hold a kernel's devices, join its network, and create and remove its workload."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ai.backend.agent.devices.holdings import ClaimedDevices
from ai.backend.agent.images.jobs import request_of
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import read_allocation, write_allocation
from ai.backend.agent.lifecycle.context import Step, StepContext
from ai.backend.agent.lifecycle.workload_config import (
    AGENT,
    check_consent,
    config_files,
    kernel_environ,
    merge_configs,
    oci_runtime_of,
    user_mounts,
    with_authors,
    without_overhead,
)
from ai.backend.agent.networks.cluster_keys import (
    CONTAINER_KEY,
    PRIVATE_KEY,
    USER_KEY,
    cluster_key_files,
    container_key_files,
)
from ai.backend.common.devices import DeviceAllocation, VariantProperty
from ai.backend.common.errors import CreationDeferred, CreationDenied, DeadlineExceeded, WorkloadError
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import MAIN_PROGRAM_TYPES
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.plugin.accelerator import WorkloadConfig
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec


class CreateWorkload(Step):
    """Creates the workload by ``runtime.create``; releases it by ``runtime.stop`` and ``runtime.remove``."""

    name = "workload"

    def workload_spec(self, kernel: Kernel, step: StepContext, labels: Mapping[str, str]) -> WorkloadSpec:
        """Builds the workload's spec. Raises CreationDenied if configs of plugins and session contradict each other."""
        spec, services = kernel.record.spec, self.context.services
        cluster = spec.cluster
        cluster_secret = self.context.secret if cluster.overlay is None else cluster.overlay.secret
        config = merge_configs([*kernel.configs, (AGENT, user_mounts(spec)), (AGENT, services.mounts())])
        declared_classes, runtime_info = self.context.settings.runtime_classes, self.context.runtime.info()
        cpu_limit, memory_limit_bytes = without_overhead(config, spec.runtime_class, declared_classes, runtime_info)
        config = replace(config, cpu_limit=cpu_limit, memory_limit_bytes=memory_limit_bytes)
        environ = kernel_environ(spec, config, kernel.attached, labels, kernel.secrets)
        public_environ = {name: value for name, value in environ.items() if name not in kernel.secrets}
        return WorkloadSpec(
            key=kernel.key,
            session_id=kernel.record.session_id,
            image=spec.image,
            environ=environ,
            config=config,
            files={
                **config_files(spec, public_environ, kernel.record.device_allocation, config),
                **(container_key_files(self.context.secret, spec.session_id) if services.has_sshd else {}),
                **(
                    cluster_key_files(cluster_secret, spec.session_id, cluster.hosts)
                    if kernel.network is not None
                    else {}
                ),
                **({USER_KEY: f"{spec.ssh_public_key}\n".encode()} if spec.ssh_public_key else {}),
            },
            secret_names=frozenset(kernel.secrets),
            private_files=frozenset({PRIVATE_KEY, CONTAINER_KEY}),
            hostname=spec.cluster_hostname,
            shmem_bytes=spec.shmem_bytes,
            network=kernel.network,
            runtime_class=oci_runtime_of(spec.runtime_class, declared_classes, runtime_info),
            program=(spec.startup_command or "") if spec.session_type in MAIN_PROGRAM_TYPES else "",
            image_request=request_of(kernel) if spec.auto_pull else None,
            labels={
                "ai.backend.agent-id": self.context.settings.agent.id,
                "ai.backend.kernel-id": spec.kernel_id,
                "ai.backend.session-id": spec.session_id,
                "ai.backend.owner": spec.access_key,
            },
        )

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        if kernel.record.workload_id:  # resumed
            if await self.context.runtime.inspect(kernel.key) is None:
                raise WorkloadError("the workload was not there any more")
            return
        own_timeout_s = self.context.runtime.info().create_timeout_s
        timeout_s = own_timeout_s or self.context.settings.kernel_lifecycles.create_timeout
        if kernel.record.has_secrets and not kernel.secrets:
            raise CreationDeferred("the agent has ended since it was given the kernel's secrets", retry_after=0.0)
        services = await self.context.services.declare(kernel.record.spec)
        labels = await self.context.services.labels_of(kernel.record.spec)
        spec = self.workload_spec(kernel, step, labels)
        try:
            check_consent(spec.config, self.context.settings.agent.consented_syscalls)
            await self.context.cdi.ensure({device.cdi_name for device in spec.config.devices if device.cdi_name})
            async with asyncio.timeout(timeout_s):
                view = await self.context.runtime.create(spec)
        except TimeoutError:
            raise DeadlineExceeded(f"the workload was not created within {timeout_s:g} s") from None
        except CreationDenied as e:
            raise with_authors(e, kernel.configs) from e
        features = labels.get("ai.backend.features", "").split()
        problem = self._not_applied(spec.config)
        kernel.save(workload_id=view.workload_id, services=services, features=features, note=problem)
        kernel.configs, kernel.attached, kernel.secrets = [], {}, {}  # a restart gets new ones

    def _not_applied(self, config: WorkloadConfig) -> str | None:
        capabilities = self.context.runtime.info().capabilities
        values_of_field = {"networks": config.networks, "extra-gids": config.extra_gids}
        unsupported_fields = [
            name for name, requested_values in values_of_field.items() if requested_values and name not in capabilities
        ]
        return (
            f"the agent's runtime does not apply {' and '.join(unsupported_fields)} of the plugins"
            if unsupported_fields
            else None
        )

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        settings = self.context.settings.kernel_lifecycles
        grace_s = 0.0 if kernel.is_hurried.is_set() else settings.stop_grace
        workload_keys = [kernel.key]
        if kernel.record.restarted_from is not None:
            workload_keys.append(WorkloadKey(kernel_id=kernel.record.kernel_id, attempt=kernel.record.restarted_from))
        for key in workload_keys:
            workload_exit = await self.context.runtime.stop(key, grace_s=grace_s)
            if workload_exit is not None and key == kernel.key:
                kernel.exit = workload_exit
            await self.context.runtime.remove(key, keep_home=step.restarting)


class Network(Step):
    """Joins the session's network before the workload is created, and leaves the network after the removal."""

    name = "network"

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        kernel.network = await self.context.networks.join(kernel.record)

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        if not step.restarting:  # the next attempt uses the same address
            await self.context.networks.leave(kernel.record)


def claimed_devices_of(spec: KernelSpec) -> ClaimedDevices | None:
    """Returns the device claim of a kernel; None if it has none."""
    if (claim := spec.claim) is None:
        return None
    bound_devices = read_allocation(claim.devices) if claim.is_bound else None
    return ClaimedDevices(claim_id=claim.id, slots=frozenset(claim.slots), bound_devices=bound_devices)


class Devices(Step):
    """Takes and frees the devices of a kernel.

    The devices are bound when a creation is accepted, so that the creation can be refused at once.
    """

    name = "devices"

    def bind(self, kernel: Kernel, devices_of_claims: Mapping[str, DeviceAllocation]) -> None:
        """Takes the planned devices for a kernel, or equivalent ones. Takes all devices or none.

        ``devices_of_claims``: the devices of the node's claims, by claim. Raises ResourceError if none are free.
        """
        spec = kernel.record.spec
        self.context.inventory.bind(
            kernel.id,
            ResourceSlot.parse(dict(spec.slots)),
            read_allocation(spec.devices),
            spec.generation,
            [VariantProperty.parse(amount_text) for amount_text in spec.variant_requirements],
            spec.device_requests,
            claim=claimed_devices_of(spec),
            devices_of_claims=devices_of_claims,
        )
        allocation = self.context.inventory.holding(kernel.id)
        kernel.record = replace(kernel.record, allocation=write_allocation(allocation))

    async def acquire(self, kernel: Kernel, step: StepContext) -> None:
        """Takes the kernel's recorded devices again after a crash, and cuts partitions that are not cut yet. Raises
        CreationDeferred if a device has failed or a partition could not be cut.
        """
        if not self.context.inventory.holds(kernel.id):
            claim = claimed_devices_of(kernel.record.spec)
            self.context.inventory.adopt(kernel.id, kernel.record.device_allocation, claim)
        if not step.restarting and (failed_devices := self.context.inventory.unhealthy_devices(kernel.id)):
            failed_names = ", ".join(
                f"{device.device_id} ({device.reason})" if device.reason else device.device_id
                for device in failed_devices
            )
            raise CreationDeferred(f"devices have failed before the kernel was created: {failed_names}")
        if await self.context.partitioner.cut(kernel.id):
            kernel.save(allocation=write_allocation(self.context.inventory.holding(kernel.id)))

    async def release(self, kernel: Kernel, step: StepContext) -> None:
        if not step.restarting:
            self.context.inventory.free(kernel.id)
