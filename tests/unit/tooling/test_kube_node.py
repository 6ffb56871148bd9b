"""The node of a test cluster: on control groups version 2, and with a control plane of another machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from tools.kube import place
from tools.kube.authority import Authority
from tools.kube.control_plane import ControlPlane


def test_a_group_of_the_unified_hierarchy_has_the_processors_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its top has no `cpuset.cpus`, which version 1 has and of which each group needs a copy."""
    monkeypatch.setattr(place, "_CGROUPS", tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    group = tmp_path / place.Addresses(0).cgroup[1:]
    group.mkdir()
    (group / "cpuset.cpus").touch()
    place.Place(tmp_path / "folder", tmp_path / "pause")._make_cgroups()
    assert (group / "cpuset.cpus").read_text() == ""


def test_a_node_elsewhere_issues_certificates_of_the_same_authority(tmp_path: Path) -> None:
    first = Authority(tmp_path / "first")
    second = Authority(tmp_path / "second", tmp_path / "first")
    assert second.certificate.read_bytes() == first.certificate.read_bytes()
    pair = second.issue("kubelet", "system:node:node", hosts=("10.196.50.2",))
    authority = x509.load_pem_x509_certificate(first.certificate.read_bytes())
    x509.load_pem_x509_certificate(pair.certificate.read_bytes()).verify_directly_issued_by(authority)


def test_tests_read_the_control_plane_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BACKENDAI_KUBE_CONTROL_PLANE", raising=False)
    assert ControlPlane.from_environment() is None
    there = ControlPlane("10.196.0.2", Path("/mnt/ours/authority"))
    monkeypatch.setenv(*there.variable)
    assert ControlPlane.from_environment() == there
