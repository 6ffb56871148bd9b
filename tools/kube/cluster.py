"""A Kubernetes cluster of this machine: the real control plane, and where it is wanted one real node, or many of KWOK.

A cluster runs in namespaces of its own, so that several run beside each other (`tools/kube/place.py`). This machine
reaches the API server, the kubelet and every pod by address; the cluster and its pods reach this machine at
``Cluster.host_address``. Needs root, and the programs that `python -m tools.kube build` makes.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from tools.kube.authority import Authority, Pair
from tools.kube.build import build
from tools.kube.configuration import write_audit_policy, write_containerd, write_kubeconfig, write_kubelet
from tools.kube.control_plane import ControlPlane
from tools.kube.daemon import SLOWNESS, Daemon, DaemonFailed
from tools.kube.families import families, needed_families
from tools.kube.images import write_busybox_image, write_pause_image
from tools.kube.kwok import options as kwok_options
from tools.kube.kwok import write_configuration as write_kwok
from tools.kube.place import FIRST_JOINED, Place

NODE_NAME = "node"
_API_PORT = 6443
_NODE_TIMEOUT_S = 60.0
_NOT_WATCHING = frozenset({"etcd", "containerd", "kube-apiserver"})


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Describes a cluster.

    Args:
        has_node: a kubelet with containerd runs; else the cluster is a control plane only.
        control_plane: that of another machine, which the node joins; none is started, nor KWOK or kube-proxy.
        has_kwok: KWOK plays the nodes that :func:`tools.kube.kwok.add_nodes` makes.
        has_services: kube-proxy runs, so that addresses of services work in pods.
        has_gvisor: the node runs pods of RuntimeClass ``gvisor``.
        is_audited: the API server records every request in ``Cluster.audit_log``.
        feature_gates: Kubernetes' feature gates, for every daemon.
        kubelet: fields of KubeletConfiguration.
        api_server, controller_manager, scheduler: further options of these programs, which go before ours.
    """

    has_node: bool = True
    control_plane: ControlPlane | None = None
    has_kwok: bool = False
    has_services: bool = False
    has_gvisor: bool = False
    is_audited: bool = False
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    kubelet: Mapping[str, Any] = field(default_factory=dict)
    api_server: Sequence[str] = ()
    controller_manager: Sequence[str] = ()
    scheduler: Sequence[str] = ()


class Cluster:
    """Holds a running cluster.

    ``daemons`` has those that run, by the name of their program: each can be killed and started again.
    """

    def __init__(self, options: ClusterOptions = ClusterOptions()) -> None:
        self.options = options
        self.folder = Path()
        self.daemons: dict[str, Daemon] = {}
        self._known = families()
        self._tls = ssl.create_default_context()

    # ---- where things are

    @property
    def address(self) -> str:
        """The address of the node, and of the API server unless that is another machine's."""
        return self.place.addresses.cluster

    @property
    def api_address(self) -> str:
        return self.address if self.options.control_plane is None else self.options.control_plane.address

    @property
    def host_address(self) -> str:
        """This machine as pods dial it: what listens here, or on all addresses, is reached by pods."""
        return self.place.addresses.host

    def service_address(self, number: int) -> str:
        """Return an address for a service, which this machine reaches too if kube-proxy runs."""
        return str(ip_network(self.place.addresses.services)[number])

    @property
    def url(self) -> str:
        return f"https://{self.api_address}:{_API_PORT}"

    @property
    def kubeconfig(self) -> Path:
        """Of a user who may do everything."""
        return self.folder / "admin.kubeconfig"

    @property
    def network(self) -> Path:
        """The cluster's network namespace, for ``nsenter --net=``."""
        return self.place.network

    @property
    def containerd_socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def kubelet_folder(self) -> Path:
        """The folder that is ``/var/lib/kubelet`` for the kubelet, with the sockets of device plugins and drivers."""
        return self.folder / "kubelet"

    @property
    def cdi_folder(self) -> Path:
        """Where containerd looks for CDI specifications."""
        return self.folder / "cdi"

    @property
    def registries_folder(self) -> Path:
        """The folder of ``HOST:PORT/hosts.toml``, which containerd reads at each pull from a registry."""
        return self.folder / "registries"

    @property
    def audit_log(self) -> Path:
        """Where the API server records requests, one JSON object a line, if ``is_audited``."""
        return self.folder / "audit.log"

    @property
    def certificate_authority(self) -> Path:
        return self.authority.certificate

    def program(self, name: str) -> Path:
        """Return the path of a built program. Raises KeyError."""
        return next(f.place() / name for f in self._known.values() if name in f.programs)

    # ---- life

    def start(self) -> None:
        """Build what is missing, start everything, and wait until the node is ready.

        Raises:
            BuildFailed: a program is missing and cannot be built.
            PlaceFailed, DaemonFailed: the cluster cannot be started; nothing of it is left.
        """
        build(needed_families(kwok=self.options.has_kwok, gvisor=self.options.has_gvisor))
        self.folder = Path(tempfile.mkdtemp(prefix="bai-kube-"))
        first_number = 0 if self.options.control_plane is None else FIRST_JOINED
        self.place = Place(self.folder, self.program("pause"), first_number)
        try:
            self.place.open()
            self._start_daemons()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything; no process, mount, network device, control group or file of the cluster is left."""
        self.place.close()
        for daemon in self.daemons.values():
            daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_daemons(self) -> None:
        joined = self.options.control_plane
        self.authority = Authority(self.folder / "pki", None if joined is None else joined.authority)
        self.admin = self.authority.issue("admin", "admin", ("system:masters",))
        self._tls = ssl.create_default_context(cafile=str(self.authority.certificate))
        self._tls.load_cert_chain(self.admin.certificate, self.admin.key)
        write_kubeconfig(self.kubeconfig, self.url, self.authority.certificate, self.admin)
        if joined is None:
            self._launch_etcd()
        if self.options.has_node:
            self._launch_containerd()
        if joined is None:
            self.daemons["etcd"].wait_ready()
            self._launch_api_server()
        if self.options.has_node:
            self.daemons["containerd"].wait_ready()
            self._import_base_images()
        if joined is None:
            self.daemons["kube-apiserver"].wait_ready()
            self._launch_controllers()
        if self.options.has_node:
            self._launch_kubelet()
        if self.options.has_services and joined is None:
            self._launch_proxy()
        if self.options.has_kwok and joined is None:
            self._launch_kwok()
        for daemon in self.daemons.values():
            daemon.wait_ready()
        if self.options.has_node:
            self.wait_for(self.is_node_ready, "the node to be ready", _NODE_TIMEOUT_S)
        self.wait_for(self._has_default_account, "the default service account")
        if self.options.has_gvisor:
            handler = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "runsc"}
            self.apply({**handler, "metadata": {"name": "gvisor"}})

    # ---- clients

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        """Return the API server's answer as a user who may do everything, decoded where it is JSON.

        Raises:
            ApiError: the status is not of the 2xx.
            OSError: the server cannot be reached.
        """
        connection = http.client.HTTPSConnection(self.api_address, _API_PORT, timeout=30, context=self._tls)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": content_type})
            answer = connection.getresponse()
            content = answer.read().decode(errors="replace")
        except http.client.HTTPException as e:
            raise ConnectionError(f"{method} {path}: {e!r}") from e
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise ApiError(answer.status, f"{method} {path}: {answer.status} {content[:2000]}")
        try:
            return json.loads(content)
        except ValueError:
            return content

    def kubectl(self, *arguments: str, text: str | None = None, timeout_s: float = 60.0) -> str:
        """Return what kubectl writes; ``text`` is its standard input. Raises subprocess.CalledProcessError."""
        command = [str(self.program("kubectl")), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=timeout_s * SLOWNESS, check=False
        )
        if done.returncode != 0:
            raise CommandFailed(f"kubectl {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Make or change these objects. Raises CommandFailed."""
        self.kubectl("apply", "-f", "-", text=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def pod(self, name: str, namespace: str = "default") -> dict[str, Any]:
        """Return a pod as the API server has it. Raises ApiError."""
        answer: dict[str, Any] = self.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        return answer

    def wait_for_phase(
        self, name: str, phase: str = "Running", namespace: str = "default", timeout_s: float = 150.0
    ) -> dict[str, Any]:
        """Wait until a pod is in this phase, and return it. Raises DaemonFailed."""
        pod: dict[str, Any] = {}

        def is_reached() -> bool:
            nonlocal pod
            pod = self.pod(name, namespace)
            return bool(pod["status"].get("phase") == phase)

        try:
            self.wait_for(is_reached, f"pod {name} to be {phase}", timeout_s)
        except DaemonFailed as e:
            raise DaemonFailed(f"{e}: {json.dumps(pod.get('status'))}\n{self.kubectl('get', 'events', '-A')}") from e
        return pod

    def wait_for(self, condition: Callable[[], bool], what: str, timeout_s: float = 150.0) -> None:
        """Wait until ``condition``, during which the API server may be away. Raises DaemonFailed."""
        deadline = time.monotonic() + timeout_s * SLOWNESS
        while True:
            with suppress(OSError, ApiError):
                if condition():
                    return
            if time.monotonic() > deadline:
                raise DaemonFailed(f"waited {timeout_s:g} s for {what}\n{self._last_errors()}")
            time.sleep(0.05)

    def _last_errors(self) -> str:
        """Return the last two errors that each daemon has logged, in klog's form (``E1128 18:28:34 ...``)."""
        errors = {
            name: [line[:300] for line in daemon.log_tail().splitlines() if line[:2] in ("E0", "E1")][-2:]
            for name, daemon in self.daemons.items()
        }
        return "\n".join(f"{name}: {line}" for name, lines in errors.items() for line in lines)

    def is_node_ready(self, name: str = NODE_NAME) -> bool:
        """Return whether a node has told that it is ready. Raises ApiError, OSError."""
        conditions = self.request("GET", f"/api/v1/nodes/{name}")["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def import_image(self, archive: Path) -> None:
        """Give the node an image from an archive as `docker save` writes. Raises CommandFailed."""
        self.ctr("images", "import", "--digests=false", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Return what containerd's `ctr` writes, in the namespace of the kubelet's containers. Raises CommandFailed."""
        command = [str(self.program("ctr")), f"--address={self.containerd_socket}", "--namespace=k8s.io", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120 * SLOWNESS, check=False)
        if done.returncode != 0:
            raise CommandFailed(f"ctr {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    # ---- daemons

    def reconnect(self) -> None:
        """Restart what watches the API server, and that too, once it or etcd is back after seconds of absence.

        The watches of Kubernetes' own programs come back by themselves, but only after a delay that has grown up to a
        minute meanwhile (client-go's reflector): until then no pod is bound, started or ended. The API server has a
        connection to etcd for each kind of objects, whose delays grow up to two minutes (gRPC): until then those who
        watch that kind, as kube-proxy does services, are refused, and wait in turn.

        Raises PlaceFailed, DaemonFailed.
        """
        self.daemons["kube-apiserver"].restart()
        watching = [daemon for name, daemon in self.daemons.items() if name not in _NOT_WATCHING]
        for daemon in watching:
            daemon.kill()
        for daemon in watching:
            daemon.launch()
        for daemon in watching:
            daemon.wait_ready()

    def _launch(self, name: str, arguments: Sequence[str], answers: Callable[[], bool]) -> None:
        folders = [str(family.place()) for family in self._known.values()]
        environment = {"PATH": os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)]), "HOME": "/root"}
        daemon = Daemon(
            name,
            self.place,
            [str(self.program(name)), *arguments],
            self.folder / f"{name}.log",
            environment,
            answers,
        )
        daemon.launch()
        self.daemons[name] = daemon

    def _launch_etcd(self) -> None:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        arguments = [f"--data-dir={self.folder}/etcd", "--unsafe-no-fsync", "--log-level=warn", "--name=one"]
        arguments += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        arguments += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        arguments += [f"--initial-cluster=one={peer}", f"--listen-metrics-urls=http://{self.address}:2381"]
        arguments += ["--quota-backend-bytes=8589934592", "--auto-compaction-retention=1"]
        self._launch("etcd", arguments, lambda: self._answers_http(2381, "/readyz"))

    def _launch_api_server(self) -> None:
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1")
        here = self.place.addresses
        serving = self.authority.issue("apiserver", "kube-apiserver", hosts=(*names, here.cluster, here.api_service))
        to_kubelet = self.authority.issue("apiserver-kubelet", "kube-apiserver-kubelet-client", ("system:masters",))
        private, public = self.authority.make_token_keys()
        arguments = [*self.options.api_server, "--etcd-servers=http://127.0.0.1:2379", f"--secure-port={_API_PORT}"]
        arguments += [f"--advertise-address={here.cluster}", f"--service-cluster-ip-range={here.services}"]
        arguments += [f"--tls-cert-file={serving.certificate}", f"--tls-private-key-file={serving.key}"]
        arguments += [f"--client-ca-file={self.authority.certificate}", "--authorization-mode=Node,RBAC"]
        arguments += [f"--kubelet-client-certificate={to_kubelet.certificate}"]
        arguments += [f"--kubelet-client-key={to_kubelet.key}", "--kubelet-preferred-address-types=InternalIP"]
        arguments += [f"--kubelet-certificate-authority={self.authority.certificate}"]
        arguments += ["--service-account-issuer=https://kubernetes.default.svc", "--allow-privileged"]
        arguments += [f"--service-account-key-file={public}", f"--service-account-signing-key-file={private}"]
        arguments += ["--enable-admission-plugins=NodeRestriction", *self._gates()]
        if not any(argument.startswith("--max-requests-inflight") for argument in self.options.api_server):
            arguments += ["--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000"]
        if self.options.is_audited:
            policy = write_audit_policy(self.folder / "audit-policy.json")
            arguments += [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
        self._launch("kube-apiserver", arguments, lambda: self._answers_https(_API_PORT, "/readyz"))

    def _launch_controllers(self) -> None:
        shared = ["--leader-elect=false", "--kube-api-qps=1000", "--kube-api-burst=2000", *self._gates()]
        ours = ["--use-service-account-credentials", f"--root-ca-file={self.authority.certificate}"]
        ours += [f"--service-account-private-key-file={self.authority.folder}/tokens.key"]
        name = "kube-controller-manager"
        config = f"--kubeconfig={self._kubeconfig_of(name, f'system:{name}')}"
        arguments = [*self.options.controller_manager, *shared, *ours, config]
        self._launch(name, arguments, lambda: self._answers_https(10257, "/healthz"))
        name = "kube-scheduler"
        config = f"--kubeconfig={self._kubeconfig_of(name, f'system:{name}')}"
        arguments = [*self.options.scheduler, *shared, config]
        self._launch(name, arguments, lambda: self._answers_https(10259, "/healthz"))

    def _launch_containerd(self) -> None:
        gvisor = None
        if self.options.has_gvisor:
            gvisor = self.folder / "runsc.toml"
            gvisor.write_text('[runsc_config]\nplatform = "systrap"\n')
        config = write_containerd(
            self.folder / "containerd.toml",
            self.place.addresses,
            folder=self.folder,
            socket=self.containerd_socket,
            plugins=self._known["cni"].place(),
            gvisor_config=gvisor,
        )
        self._launch("containerd", [f"--config={config}", "--log-level=info"], self._containerd_answers)

    def _launch_kubelet(self) -> None:
        user = f"system:node:{NODE_NAME}"
        serving = self.authority.issue("kubelet-serving", user, ("system:nodes",), hosts=(NODE_NAME, self.address))
        config = write_kubelet(
            self.folder / "kubelet.json",
            self.place.addresses,
            folder=self.folder,
            socket=self.containerd_socket,
            authority=self.authority.certificate,
            serving=serving,
            feature_gates=self.options.feature_gates,
            further={"healthzBindAddress": self.address, **self.options.kubelet},
        )
        kubeconfig = self._kubeconfig_of("kubelet", user, ("system:nodes",))
        arguments = [f"--config={config}", f"--kubeconfig={kubeconfig}", f"--hostname-override={NODE_NAME}"]
        arguments += [f"--node-ip={self.address}"]
        self._launch("kubelet", arguments, lambda: self._answers_http(10248, "/healthz"))

    def _launch_proxy(self) -> None:
        # Else the answer of a pod to another one of the node would go past the rules by which a service's address leads
        # to it.
        self.place.run("sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1")
        kubeconfig = self._kubeconfig_of("kube-proxy", "system:kube-proxy")
        arguments = [f"--kubeconfig={kubeconfig}", f"--hostname-override={NODE_NAME}", "--proxy-mode=iptables"]
        arguments += [f"--cluster-cidr={self.place.addresses.pods}", "--conntrack-max-per-core=0"]
        arguments += ["--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"]
        self._launch("kube-proxy", arguments, lambda: self._answers_http(10256, "/livez"))

    def _launch_kwok(self) -> None:
        stages = write_kwok(self.folder / "kwok.yaml", self.program("kwok").parent / "stages")
        self._launch(
            "kwok",
            [*kwok_options(self.kubeconfig, stages), f"--server-address={self.address}:10247"],
            self._kwok_answers,
        )

    def _kubeconfig_of(self, name: str, user: str, groups: tuple[str, ...] = ()) -> Path:
        pair = self.authority.issue(name, user, groups)
        return write_kubeconfig(self.folder / f"{name}.kubeconfig", self.url, self.authority.certificate, pair)

    def user(self, name: str, groups: tuple[str, ...] = ()) -> Path:
        """Return a new kubeconfig of a user of these groups, who may do what roles allow."""
        return self._kubeconfig_of(f"user-{name}", name, groups)

    def _gates(self) -> list[str]:
        gates = ",".join(f"{name}={str(value).lower()}" for name, value in sorted(self.options.feature_gates.items()))
        return [f"--feature-gates={gates}"] if gates else []

    def _import_base_images(self) -> None:
        pause, busybox = self.folder / "pause.tar", self.folder / "busybox.tar"
        write_pause_image(pause, self.program("pause"))
        write_busybox_image(busybox)
        for archive in (pause, busybox):
            self.import_image(archive)

    # ---- whether they answer

    def _answers_http(self, port: int, path: str) -> bool:
        return self._is_ok(http.client.HTTPConnection(self.address, port, timeout=2), path)

    def _answers_https(self, port: int, path: str) -> bool:
        # Controller manager and scheduler make certificates of their own for what they serve.
        context = self._tls if port == _API_PORT else ssl._create_unverified_context()
        return self._is_ok(http.client.HTTPSConnection(self.address, port, timeout=2, context=context), path)

    def _is_ok(self, connection: http.client.HTTPConnection, path: str) -> bool:
        try:
            connection.request("GET", path)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _containerd_answers(self) -> bool:
        try:
            self.ctr("version")
        except CommandFailed:
            return False
        return True

    def _kwok_answers(self) -> bool:
        return self._answers_http(10247, "/readyz")

    def _has_default_account(self) -> bool:
        self.request("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        return True


class ApiError(RuntimeError):
    """Says what the API server answered, with its status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CommandFailed(RuntimeError):
    """Says which command failed, and what it wrote."""


@contextmanager
def running_cluster(options: ClusterOptions = ClusterOptions()) -> Iterator[Cluster]:
    """Start a cluster, and end it with the block; it ends also where this process is killed.

    Raises:
        BuildFailed, PlaceFailed, DaemonFailed: it cannot be started.
    """
    cluster = Cluster(options)
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


__all__ = ["NODE_NAME", "ApiError", "Cluster", "ClusterOptions", "CommandFailed", "Pair", "running_cluster"]
