"""The default policy allows what the settings allow and nothing that they block."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.runtime.kubernetes.policies import default_policy
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings


def policy(**settings: Any) -> dict[str, Any]:
    values = {"runner_image": "r", "relay_target": "shard:6020", **settings}
    return default_policy(KubernetesRuntimeSettings(**values), ())


@pytest.mark.parametrize(
    ("egress", "blocked", "blocks"),
    [
        (("0.0.0.0/0",), ("169.254.0.0/16",), [{"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}]),
        (("10.1.0.0/16",), ("10.1.0.0/16",), []),
        (("10.1.0.0/16", "10.2.0.0/16"), ("10.0.0.0/15", "fd00::/8"), [{"cidr": "10.2.0.0/16"}]),
        (("169.254.169.254/32",), ("169.254.0.0/16",), []),
        (("::/0",), ("fd00:ec2::/32",), [{"cidr": "::/0", "except": ["fd00:ec2::/32"]}]),
    ],
)
def test_no_blocked_network_is_reached_through_an_allowed_one(
    egress: tuple[str, ...], blocked: tuple[str, ...], blocks: list[dict[str, Any]]
) -> None:
    rules = policy(egress=egress, blocked_egress=blocked)["spec"]["egress"]
    assert [peer["ipBlock"] for rule in rules for peer in rule.get("to", ())] == blocks


def test_two_installations_in_one_namespace_keep_a_policy_each() -> None:
    names = {policy(instance=instance)["metadata"]["name"] for instance in ("default", "other")}
    assert len(names) == 2
