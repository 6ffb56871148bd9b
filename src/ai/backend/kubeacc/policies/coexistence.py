"""Decides who owns a device if another device plugin runs too, by the proposal's co-existence rule (spec 02, notes).

A locally attached device may be known to both; then the other plugin has the life cycle, and kube-acc discovers and
reports only. A remotely attached device belongs to one of the two; a second one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ai.backend.common.device_operations import OperationVerb
from ai.backend.kubeacc.crd.vocabulary import Attachment, LifecycleOwner


class DeviceClaims(NamedTuple):
    """Describes which parties claim a device.

    ``by_class``: the owner that the device's class names; ``other_plugin``: another device plugin, or another DRA
    driver, offers it on its node.
    """

    attachment: Attachment
    by_class: LifecycleOwner
    other_plugin: bool


class Ownership(NamedTuple):
    """Holds the owner of a device, and the reason and message for this owner.

    ``owner`` is None if two parties claim a device that only one may have. Nobody operates such a device.
    """

    owner: LifecycleOwner | None
    reason: str
    message: str

    @property
    def is_managed(self) -> bool:
        """Returns True if kube-acc may operate the device and offer it to pods."""
        return self.owner is LifecycleOwner.KUBE_ACC


_LOCAL, _REMOTE = Attachment.LOCAL, Attachment.REMOTE
_KUBE_ACC, _DEVICE_PLUGIN = LifecycleOwner.KUBE_ACC, LifecycleOwner.DEVICE_PLUGIN

OWNERSHIP_TABLE: Mapping[DeviceClaims, Ownership] = {
    DeviceClaims(_LOCAL, _KUBE_ACC, other_plugin=False): Ownership(
        _KUBE_ACC, "KubeAccOnly", "kube-acc operates the device"
    ),
    DeviceClaims(_LOCAL, _KUBE_ACC, other_plugin=True): Ownership(
        _DEVICE_PLUGIN,
        "OtherDevicePlugin",
        "another device plugin offers the device: it has the life cycle, kube-acc discovers and reports only",
    ),
    DeviceClaims(_LOCAL, _DEVICE_PLUGIN, other_plugin=False): Ownership(
        _DEVICE_PLUGIN,
        "OwnedByClass",
        "the class leaves the life cycle to another device plugin, which does not offer it now",
    ),
    DeviceClaims(_LOCAL, _DEVICE_PLUGIN, other_plugin=True): Ownership(
        _DEVICE_PLUGIN, "OwnedByClass", "the class leaves the life cycle to the other device plugin"
    ),
    DeviceClaims(_REMOTE, _KUBE_ACC, other_plugin=False): Ownership(
        _KUBE_ACC, "KubeAccOnly", "kube-acc operates the device"
    ),
    DeviceClaims(_REMOTE, _KUBE_ACC, other_plugin=True): Ownership(
        None,
        "TwoOwners",
        "another device plugin offers a remote device that the class gives to kube-acc: remove one of the two",
    ),
    DeviceClaims(_REMOTE, _DEVICE_PLUGIN, other_plugin=False): Ownership(
        _DEVICE_PLUGIN, "OwnedByClass", "the class leaves the device to another device plugin"
    ),
    DeviceClaims(_REMOTE, _DEVICE_PLUGIN, other_plugin=True): Ownership(
        _DEVICE_PLUGIN, "OwnedByClass", "the class leaves the device to the other device plugin"
    ),
}
"""Every combination; a test compares it with the sentences of the proposal."""
REPORT_ONLY = frozenset({OperationVerb.DIAGNOSE})
"""The operations that only report, and are possible whoever has the life cycle."""


def ownership(attachment: Attachment, class_owner: LifecycleOwner, *, other_plugin: bool) -> Ownership:
    """Returns the owner of a device."""
    return OWNERSHIP_TABLE[DeviceClaims(attachment, class_owner, other_plugin)]


def may_operate(owner: LifecycleOwner | None, verb: OperationVerb) -> bool:
    """Returns True if kube-acc may run an operation on a device of the given owner."""
    return owner is LifecycleOwner.KUBE_ACC or verb in REPORT_ONLY
