"""Builds the specification of a kernel for its agent. Pure.

The variables are those of peer facts 2.7 that only the manager knows; they override the user's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ai.backend.common.slots import BinarySize
from ai.backend.common.states import ClaimStatus
from ai.backend.common.wire.agent import ClaimSpec, ClusterInfo, KernelSpec, MountSpec
from ai.backend.common.wire.execution import FileBlob
from ai.backend.manager.dotfiles.model import InjectedFiles
from ai.backend.manager.sessions.claims.model import Claim
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.networks import Derive, no_secret, overlay_info
from ai.backend.manager.sessions.transitions import RELOCATED_FROM

_NO_FILES = InjectedFiles()
_NO_SECRETS: Mapping[str, str] = {}
_COPIED_FIELDS = (
    *("attempt", "image", "architecture", "generation", "cluster_role", "cluster_idx", "cluster_hostname"),
    "local_rank",
)
"""The fields of a specification that are those of its kernel."""


def _kernels_per_role(session: Session) -> dict[str, int]:
    return dict(Counter(kernel.cluster_role for kernel in session.kernels))


def kernel_environ(session: Session, kernel: Kernel) -> dict[str, str]:
    """Returns the environment variables of a kernel's container, without those that are sealed."""
    environ = {
        **({"TRACEPARENT": session.trace} if session.trace is not None else {}),
        **session.environ,
        **kernel.role_options.get("environ", {}),
        "BACKENDAI_USER_UUID": str(session.user_id),
        "BACKENDAI_USER_EMAIL": session.user_email,
        "BACKENDAI_USER_NAME": session.user_email.partition("@")[0],
        "BACKENDAI_SESSION_ID": str(session.id),
        "BACKENDAI_SESSION_NAME": session.name,
        "BACKENDAI_ACCESS_KEY": session.access_key,
        "BACKENDAI_CLUSTER_SIZE": str(session.cluster_size),
        "BACKENDAI_CLUSTER_REPLICAS": ",".join(
            f"{role}:{kernel_count}" for role, kernel_count in _kernels_per_role(session).items()
        ),
        "BACKENDAI_CLUSTER_HOSTS": ",".join(kernel.cluster_hostname for kernel in session.kernels),
        "BACKENDAI_KERNEL_ID": str(kernel.id),
        "BACKENDAI_KERNEL_IMAGE": kernel.image,
        "BACKENDAI_CLUSTER_ROLE": kernel.cluster_role,
        "BACKENDAI_CLUSTER_IDX": str(kernel.cluster_idx),
        "BACKENDAI_CLUSTER_LOCAL_RANK": str(kernel.local_rank),
        "BACKENDAI_CLUSTER_HOST": kernel.cluster_hostname,
    }
    if session.claim_name is not None:
        environ["BACKENDAI_DEVICE_CLAIM"] = session.claim_name
    if session.preopen_ports:
        environ["BACKENDAI_PREOPEN_PORTS"] = ",".join(str(port) for port in session.preopen_ports)
    return environ


def _claim_spec(claim: Claim) -> ClaimSpec:
    return ClaimSpec(
        id=str(claim.id),
        slots=claim.occupied_slots.to_json(),
        devices={slot: dict(devices) for slot, devices in claim.devices.items()},
        is_bound=claim.status is not ClaimStatus.ALLOCATING,
    )


def kernel_spec(
    session: Session,
    kernel: Kernel,
    files: InjectedFiles = _NO_FILES,
    derive: Derive = no_secret,
    secrets: Mapping[str, str] = _NO_SECRETS,
    claim: Claim | None = None,
) -> KernelSpec:
    """Returns the specification from which an agent creates the current attempt of a kernel. ``derive`` makes the keys
    of a network over several agents. ``secrets`` are the kernel's sealed environment variables, opened. The slots and
    devices of ``claim``, the session's device claim, are added to the slots of the kernel.
    """
    is_main = kernel.id == session.main.id
    slots = kernel.requested_slots if claim is None else kernel.requested_slots + claim.occupied_slots
    return KernelSpec(
        **{name: getattr(kernel, name) for name in _COPIED_FIELDS},
        kernel_id=str(kernel.id),
        session_id=str(session.id),
        session_name=session.name,
        session_type=session.type,
        access_key=session.access_key,
        user_id=str(session.user_id),
        user_email=session.user_email,
        slots=slots.to_json(),
        devices={slot: dict(devices) for slot, devices in kernel.devices.items()},
        variant_requirements=list(session.variant_requirements),
        device_requests=list(session.device_requests if claim is None else claim.device_requests),
        plugin_options={name: dict(options) for name, options in session.plugin_options.items()},
        diagnosed_devices={name: list(device_ids) for name, device_ids in session.diagnosed_devices.items()},
        shmem_bytes=int(BinarySize.parse(kernel.role_options.get("shmem") or session.resource_opts.get("shmem", "0"))),
        environ=kernel_environ(session, kernel),
        secret_environ=dict(secrets),
        mounts=[
            MountSpec(name=mount.name, source=mount.source, target=mount.target, read_only=mount.read_only)
            for mount in session.vfolder_mounts
        ],
        cluster=ClusterInfo(
            mode=session.cluster_mode,
            size=session.cluster_size,
            replicas=_kernels_per_role(session),
            hosts=[kernel.cluster_hostname for kernel in session.kernels],
            overlay=overlay_info(session, kernel, derive),
        ),
        startup_command=session.startup_command if is_main else None,
        bootstrap_script=kernel.role_options.get("bootstrap_script") or session.bootstrap_script,
        dotfiles=[
            FileBlob(path=dotfile.path, data=dotfile.data.encode(), mode=int(dotfile.permission, 8))
            for dotfile in files.dotfiles
        ],
        ssh_public_key=files.ssh_public_key,
        batch_timeout_s=session.batch_timeout_s if is_main else None,
        exec_timeout_s=session.exec_timeout_s,
        preopen_ports=list(session.preopen_ports),
        runtime_class=session.runtime_class,
        trace=session.trace,
        relocated_from=kernel.status_data.get(RELOCATED_FROM),
        claim=_claim_spec(claim) if claim is not None else None,
    )
