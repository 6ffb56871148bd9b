"""A cloud with Cyborg for the tests of its driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.openstack_cloud import HOST, Cloud, running_cloud


@pytest.fixture(scope="session")
def openstack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with running_cloud(tmp_path_factory.mktemp("openstack")) as cloud:
        yield cloud


def settings(cloud: Cloud, **changes: Any) -> dict[str, Any]:
    auth = {
        "auth-url": f"{cloud.stand_ins.url}/identity/v3",
        "username": "kube-acc",
        "password": "accelerate",
        "project-name": "machines",
        "user-domain-name": "Default",
        "project-domain-name": "Default",
    }
    return {"auth": auth, "nodes": {"node1": {"host": HOST}}, "request-timeout": 10, **changes}


def assert_nothing_left(cloud: Cloud) -> None:
    assert cloud.requests() == []
    assert cloud.used() == 0
    assert cloud.cyborg("GET", "/device_profiles")["device_profiles"] == []


def unit(cloud: Cloud, number: int) -> str:
    return f"{cloud.cyborg('GET', '/deployables')['deployables'][0]['uuid']}.{number}"
