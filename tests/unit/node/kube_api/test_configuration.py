"""Addresses and credentials of an API server come from a kubeconfig or a service account, or the error says why not."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from ai.backend.common.errors import InvalidInput
from ai.backend.node.kube_api.configuration import Token, address_in_pod, read_kubeconfig


def written(path: Path, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **(cluster or {})}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ours"}}],
        "users": [{"name": "u", "user": user or {}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_context_with_embedded_and_named_files(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    user = {
        "client-certificate-data": base64.b64encode(b"CERT").decode(),
        "client-key-data": base64.b64encode(b"KEY").decode(),
    }
    path = written(tmp_path / "config", user, {"certificate-authority": "ca.pem", "tls-server-name": "kube"})
    address = read_kubeconfig(path)
    assert address.server == "https://10.0.0.1:6443"
    assert (address.authority, address.certificate, address.key) == ("CA", "CERT", "KEY")
    assert (address.namespace, address.server_name, address.is_verified) == ("ours", "kube", True)
    assert "KEY" not in repr(address)


def test_a_token_file_is_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc\n")
    address = read_kubeconfig(written(tmp_path / "config", {"tokenFile": "token"}))
    assert address.token.current() == "abc"


@pytest.mark.parametrize(
    ("user", "cluster", "says"),
    [
        ({"exec": {"command": "aws"}}, {}, "needs 'exec'"),
        ({"username": "a"}, {}, "needs 'username'"),
        ({}, {"server": ""}, "has no server"),
        ({}, {"proxy-url": "http://p"}, "proxy-url is not supported"),
        ({}, {"certificate-authority-data": "%"}, "certificate-authority cannot be read"),
        ({"client-key": "gone"}, {}, "client-key cannot be read"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        read_kubeconfig(written(tmp_path / "config", user, cluster))


def test_a_context_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no context 'y'; it has x"):
        read_kubeconfig(written(tmp_path / "config"), "y")


@pytest.mark.parametrize("text", ["[1]", "clusters: 7", "{", "\0"])
def test_a_file_of_another_kind(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="is no kubeconfig"):
        read_kubeconfig(path)


def test_inside_of_a_pod(tmp_path: Path) -> None:
    for name, text in {"ca.crt": "CA", "namespace": "ours\n", "token": "t1"}.items():
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    address = address_in_pod(tmp_path, environ)
    assert address.server == "https://[fd00::1]:443"
    assert (address.namespace, address.token.current()) == ("ours", "t1")


def test_outside_of_a_pod(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="name a kubeconfig file"):
        address_in_pod(tmp_path, {})


def test_a_token_is_read_again_after_a_minute_or_when_it_is_refused(tmp_path: Path) -> None:
    file, now = tmp_path / "token", [0.0]
    file.write_text("t1")
    token = Token(file=file, clock=lambda: now[0])
    assert token.current() == "t1"
    file.write_text("t2")
    assert token.current() == "t1"
    assert token.current(is_refused=True) == "t2"
    file.write_text("t3")
    now[0] = 61.0
    assert token.current() == "t3"
    file.unlink()
    now[0] = 122.0
    assert token.current() == "t3"
