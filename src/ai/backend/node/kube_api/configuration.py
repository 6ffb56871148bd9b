"""Finds the API server and our credentials in a kubeconfig file, or in the files of a service account inside a pod."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from ai.backend.common.errors import InvalidInput

SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_AGE_S = 60.0
"""The seconds after which a token's file is read again. The kubelet replaces a projected token long before its end."""
_UNSUPPORTED_USER_KEYS = ("exec", "auth-provider", "username", "impersonate", "as")


@dataclass(eq=False)
class Token:
    """Holds a bearer token, either fixed or read from a file that other programs rewrite.

    Reading a file of a few kilobytes does not block.
    """

    value: str = field(default="", repr=False)
    file: Path | None = None
    clock: Callable[[], float] = time.monotonic
    _read_at: float = field(default=-float("inf"), init=False)

    def current(self, *, is_refused: bool = False) -> str:
        """Returns the present token, which is empty if none is configured. With ``is_refused`` the file is read anew.
        Raises InvalidInput if there is no such file and none was ever read.
        """
        if self.file is not None and (is_refused or self.clock() - self._read_at >= _TOKEN_AGE_S):
            try:
                self.value = self.file.read_text().strip()
            except OSError as e:
                if not self.value:
                    raise InvalidInput(f"the token of the API server cannot be read: {e}") from None
            self._read_at = self.clock()
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAddress:
    """Describes an API server and how to authenticate there.

    ``authority`` are certificates in PEM that may sign the server's, empty for those of the system;
    ``certificate`` and ``key`` are the client's in PEM. ``namespace`` is the default one of the credentials.
    """

    server: str
    authority: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
    token: Token = field(default_factory=Token)
    namespace: str = "default"
    server_name: str = ""
    is_verified: bool = True

    def tls(self) -> ssl.SSLContext | None:
        """Returns the TLS context for connections, or None for plain HTTP. Raises InvalidInput for certificates that
        cannot be read.
        """
        if not self.server.startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cadata=self.authority or None)
            if not self.is_verified:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            if self.certificate:
                _load_certificate(context, self.certificate, self.key)
        except (ssl.SSLError, OSError, ValueError) as e:
            raise InvalidInput(f"the certificates of the API server's configuration cannot be used: {e}") from None
        return context


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Loads the client's certificate and key into a TLS context from memory, so that the key reaches no disk.

    The module ``ssl`` reads files only, so that a file in memory is made.
    """
    memory_fd = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(memory_fd, f"{key}\n{certificate}".encode())
        context.load_cert_chain(f"/proc/self/fd/{memory_fd}")
    finally:
        os.close(memory_fd)


def address_in_pod(folder: Path = SERVICE_ACCOUNT_FOLDER, environ: Mapping[str, str] = os.environ) -> ClusterAddress:
    """Returns the API server's address for a process that runs in a pod. Raises InvalidInput outside of a pod."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        message = "this process runs in no pod (KUBERNETES_SERVICE_HOST is not set); name a kubeconfig file"
        raise InvalidInput(message, data={"kubeconfig": "missing"})
    try:
        authority, namespace = (folder / "ca.crt").read_text(), (folder / "namespace").read_text().strip()
    except OSError as e:
        raise InvalidInput(f"the files of the service account cannot be read: {e}") from None
    token = Token(file=folder / "token")
    token.current()
    host = f"[{host}]" if ":" in host else host
    return ClusterAddress(server=f"https://{host}:{port}", authority=authority, token=token, namespace=namespace)


class _Entry(msgspec.Struct, kw_only=True):
    name: str
    cluster: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    user: dict[str, Any] | None = None


class _KubeConfig(msgspec.Struct, kw_only=True, rename="kebab"):
    clusters: list[_Entry] = []
    contexts: list[_Entry] = []
    users: list[_Entry] = []
    current_context: str = ""


def read_kubeconfig(path: Path, context_name: str = "") -> ClusterAddress:
    """Returns the address of a context of a kubeconfig file. Without ``context_name`` it is the file's current context.

    Raises InvalidInput: there is no such file or context, or it needs a helper program or another way to authenticate
    than a token or a certificate.
    """
    try:
        config = msgspec.convert(yaml.safe_load(path.read_text()) or {}, _KubeConfig)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as e:
        raise InvalidInput(f"{path} is no kubeconfig: {e}", data={"kubeconfig": str(path)}) from None
    name = context_name or config.current_context
    context = _find_entry(path, config.contexts, name, "context").context or {}
    cluster = _find_entry(path, config.clusters, str(context.get("cluster", "")), "cluster").cluster or {}
    user_name = str(context.get("user", ""))
    user = (_find_entry(path, config.users, user_name, "user").user if user_name else None) or {}
    for key in _UNSUPPORTED_USER_KEYS:
        if key in user:
            message = f"{path}: the user {user_name} needs {key!r}; give it a token, a tokenFile or a certificate"
            raise InvalidInput(message, data={key: "not supported"})
    if "proxy-url" in cluster:
        raise InvalidInput(f"{path}: proxy-url is not supported", data={"proxy-url": "not supported"})
    server = str(cluster.get("server", "")).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise InvalidInput(f"{path}: the cluster of {name} has no server", data={"server": "missing"})
    token_file = user.get("tokenFile")
    return ClusterAddress(
        server=server,
        authority=_read_pem(path, cluster, "certificate-authority"),
        certificate=_read_pem(path, user, "client-certificate"),
        key=_read_pem(path, user, "client-key"),
        token=Token(str(user.get("token", "")), file=path.parent / token_file if token_file else None),
        namespace=str(context.get("namespace", "default")),
        server_name=str(cluster.get("tls-server-name", "")),
        is_verified=not cluster.get("insecure-skip-tls-verify", False),
    )


def _find_entry(path: Path, entries: list[_Entry], name: str, kind: str) -> _Entry:
    for entry in entries:
        if entry.name == name:
            return entry
    entry_names = ", ".join(entry.name for entry in entries) or "none"
    raise InvalidInput(f"{path} has no {kind} {name!r}; it has {entry_names}", data={kind: name})


def _read_pem(path: Path, values: Mapping[str, Any], key: str) -> str:
    """Returns the certificate or key that a kubeconfig file contains (``KEY-data``) or whose path it names.

    Returns an empty text if the file has neither.
    """
    try:
        if encoded_pem := values.get(f"{key}-data"):
            return base64.b64decode(str(encoded_pem), validate=True).decode()
        if pem_path := values.get(key):
            return (path.parent / str(pem_path)).read_text()
    except (OSError, binascii.Error, UnicodeDecodeError) as e:
        raise InvalidInput(f"{path}: {key} cannot be read: {e}", data={key: "unreadable"}) from None
    return ""


def cluster_address(kubeconfig: Path | None, context_name: str = "") -> ClusterAddress:
    """Returns the API server's address from a kubeconfig file, or from the pod of this process without a file.

    Raises InvalidInput.
    """
    return read_kubeconfig(kubeconfig.expanduser(), context_name) if kubeconfig is not None else address_in_pod()
