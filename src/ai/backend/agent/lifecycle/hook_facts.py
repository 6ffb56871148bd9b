"""Builds the facts that the hooks of plugins receive about a workload: its image, its rank in the cluster, why it
ends.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from typing import Any

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.common.states import KernelEventReason
from ai.backend.plugin.accelerator import WorkloadImage

_DISTRIBUTION_LABEL = "ai.backend.base-distro"
_OF_HOST = "host"
_MUSL_DISTRIBUTIONS = ("alpine", "postmarketos", "chimera")
_ENDING_METHODS = frozenset({"pre_terminate", "post_terminate"})


def image_of(name: str, architecture: str, labels: Mapping[str, str]) -> WorkloadImage:
    """Describes an image by its labels (spec 03-05:74), and a host image by the node's own system."""
    distribution = labels.get(_DISTRIBUTION_LABEL, "")
    if distribution == _OF_HOST:
        distribution, libc = _host_distribution()
    elif distribution in ("", "unknown"):
        distribution, libc = "", ""
    else:
        libc = "musl" if distribution.lower().startswith(_MUSL_DISTRIBUTIONS) else "glibc"
    return WorkloadImage(name=name, architecture=architecture, distribution=distribution, libc=libc)


@cache
def _host_distribution() -> tuple[str, str]:
    """Returns distribution and libc of this node, as ``debian12`` and ``glibc``."""
    try:
        os_release = platform.freedesktop_os_release()
    except OSError:
        os_release = {}
    libc = (
        "glibc" if platform.libc_ver()[0] == "glibc" else "musl" if os_release.get("ID") in _MUSL_DISTRIBUTIONS else ""
    )
    return f"{os_release.get('ID', '')}{os_release.get('VERSION_ID', '')}", libc


def hook_context_fields(
    plugin_key: str, kernel: Kernel, method: str, labels: Mapping[str, str], *, restarting: bool
) -> dict[str, Any]:
    """Returns the fields of a hook's context that describe the workload and the session's options for the plugin. For
    ending calls they also say why the workload ends.
    """
    record, spec = kernel.record, kernel.record.spec
    ending = record.ending
    reason = ""
    if method in _ENDING_METHODS:
        default_reason = KernelEventReason.RESTARTING.value if restarting else ""
        reason = ending.reason.value if ending is not None else default_reason
    return {
        "image": image_of(spec.image, spec.architecture, labels),
        "cluster_role": spec.cluster_role,
        "cluster_rank": spec.local_rank,
        "cluster_size": spec.cluster.size,
        "options": spec.plugin_options.get(plugin_key, {}),
        "end_reason": reason,
        "is_forced": method in _ENDING_METHODS and ending is not None and ending.forced,
    }
