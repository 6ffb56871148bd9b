"""The co-existence rule as the proposal has it."""

from __future__ import annotations

from itertools import product

import pytest

from ai.backend.common.device_operations import OperationVerb
from ai.backend.kubeacc.crd.vocabulary import Attachment, LifecycleOwner
from ai.backend.kubeacc.policies.coexistence import OWNERSHIP_TABLE, DeviceClaims, may_operate, ownership

OURS, THEIRS = LifecycleOwner.KUBE_ACC, LifecycleOwner.DEVICE_PLUGIN


@pytest.mark.parametrize("by_class", LifecycleOwner)
def test_of_a_local_device_another_plugin_has_the_life_cycle_and_kube_acc_reports(by_class: LifecycleOwner) -> None:
    rule = ownership(Attachment.LOCAL, by_class, other_plugin=True)
    assert (rule.owner, rule.is_managed) == (THEIRS, False)
    assert [verb for verb in OperationVerb if may_operate(rule.owner, verb)] == [OperationVerb.DIAGNOSE]


def test_a_remote_device_has_one_of_the_two() -> None:
    assert ownership(Attachment.REMOTE, OURS, other_plugin=False).is_managed
    assert ownership(Attachment.REMOTE, THEIRS, other_plugin=True).owner is THEIRS
    both = ownership(Attachment.REMOTE, OURS, other_plugin=True)
    assert (both.owner, both.reason) == (None, "TwoOwners")
    assert "remove one of the two" in both.message


def test_without_another_plugin_the_class_decides() -> None:
    for attachment in Attachment:
        for by_class in LifecycleOwner:
            assert ownership(attachment, by_class, other_plugin=False).owner is by_class


def test_the_table_is_complete() -> None:
    assert set(OWNERSHIP_TABLE) == {DeviceClaims(*row) for row in product(Attachment, LifecycleOwner, (False, True))}
