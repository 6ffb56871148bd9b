"""What a CDI specification may say, and which version it needs."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.node.cdi.specification import minimum_version, parse


def content(edits: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    device = {"name": "d0", "containerEdits": edits or {"env": ["A=1"]}}
    return {"cdiVersion": "1.1.0", "kind": "acme.com/npu", "devices": [device], **changes}


@pytest.mark.parametrize(
    ("specification", "version"),
    [
        (content(), "0.3.0"),
        (content({"deviceNodes": [{"path": "/dev/a"}]}), "0.3.0"),
        (content({"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "tmpfs"}]}), "0.4.0"),
        (content({"deviceNodes": [{"path": "/dev/a", "hostPath": "/dev/b"}]}), "0.5.0"),
        (content(devices=[{"name": "0", "containerEdits": {"env": ["A=1"]}}]), "0.5.0"),
        (content(annotations={"a": "b"}), "0.6.0"),
        (content(kind="acme.com/npu.large"), "0.6.0"),
        (content({"additionalGids": [44]}), "0.7.0"),
        (content(containerEdits={"intelRdt": {"closID": "x"}}), "0.7.0"),
        (content({"netDevices": [{"hostInterfaceName": "eth1", "name": "fabric"}]}), "1.1.0"),
        (content({"intelRdt": {"schemata": ["L3:0=ff"]}}), "1.1.0"),
    ],
)
def test_the_lowest_version_follows_from_the_fields(specification: dict[str, Any], version: str) -> None:
    assert minimum_version({**specification, "cdiVersion": "0.3.0"}) == version
    assert parse({**specification, "cdiVersion": version}).cdi_version == version
    if version != "0.3.0":
        with pytest.raises(InvalidInput, match=f"too low: its fields need {version}"):
            parse({**specification, "cdiVersion": "0.3.0"})


@pytest.mark.parametrize(
    ("specification", "problem"),
    [
        ([], "Expected `object`"),
        (content(surprise=1), "unknown field `surprise`"),
        (content({"deviceNodes": [{"hostPath": "/dev/a"}]}), "missing required field `path`"),
        (content(kind="npu"), "vendor.com/class"),
        (content(devices=[{"name": "a b", "containerEdits": {}}]), "cannot be the name"),
        (content(devices=[{"name": "a", "containerEdits": {}}] * 2), "twice"),
        (content(cdiVersion="one"), "MAJOR.MINOR.PATCH"),
        (content(cdiVersion="2.0.0"), "newer than 1.1.0"),
    ],
)
def test_what_engines_refuse_is_refused(specification: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse(specification)
