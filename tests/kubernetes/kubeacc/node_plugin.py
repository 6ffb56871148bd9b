"""Runs the node plugin with mock devices on the node of a cluster."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.kube.cluster import NODE_NAME, Cluster
from tools.kube.daemon import Daemon

from ai.backend.kubeacc.crd.definitions import crds_yaml
from ai.backend.kubeacc.crd.vocabulary import GROUP
from ai.backend.kubeacc.policies.roles import CONTROLLERS_ACCOUNT, NODE_ACCOUNT
from tests.kubernetes.kubeacc.accounts import account_kubeconfig
from tests.support.kubernetes import busybox_pod

REPOSITORY = Path(__file__).resolve().parents[3]
DEVICE_CLASS = "kube-acc-mock"
IS_OLD = os.environ.get("KUBE_VERSION") in ("1.34", "1.35")
"""True where the gates of taints, shares, counters and binding conditions are off."""
_REGISTERED = "has registered the DRA driver"
_DEVICES = """
slot_name = "mock"
topology = "nvlink-pairs"

[[devices]]
mother_uuid = "GPU-big"
count = 4
model_name = "Mock H100"
numa_node = [0, 1]
memory_size = "80g"

[[devices]]
mother_uuid = "cut"
model_name = "Mock A100"
memory_size = "40g"

[[devices.partitions]]
name = "1g.10gb"
memory_size = "10g"
max = 4
"""


class NodePlugin:
    """A node plugin in a process of its own, in the namespaces of the node, with the account of the chart."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        by: str = "dra",
        devices: str = _DEVICES,
        offer: str = "",
        **settings: str,
    ) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.devices = folder / "mock-accelerator.toml"
        self.devices.write_text(devices)
        self.control = folder / "mock-control.toml"
        self.mock_state = folder / "mock-state.json"
        self.state = folder / "state"
        extra = "\n".join(f'{key.replace("_", "-")} = "{value}"' for key, value in settings.items())
        config = folder / "kube-acc-node.toml"
        config.write_text(
            f"""
node-name = "{NODE_NAME}"
cdi-directory = "{cluster.cdi_folder}"
state-directory = "{self.state}"
compute-plugins = ["ai.backend.accelerator.mock"]
discovery-interval = 1.0
{extra}

[offers.mock]
by = "{by}"
type = "GPU"
{offer}

[plugins.mock]
config-path = "{self.devices}"
control-path = "{self.control}"
state-path = "{self.mock_state}"
"""
        )
        self._command = [sys.executable, "-m", "ai.backend.cli.main", "kube-acc", "node-plugin", "start-server"]
        kubeconfig = account_kubeconfig(cluster, folder, NODE_ACCOUNT, node=NODE_NAME)
        self._command += ["-f", str(config), "--kubeconfig", str(kubeconfig)]
        self.log = folder / "node-plugin.log"
        self.daemon = self._daemon("")

    def _daemon(self, crash_point: str) -> Daemon:
        environment = {"PYTHONPATH": f"{REPOSITORY / 'src'}", "PATH": "/usr/bin:/bin"}
        environment |= {"BACKENDAI_CRASH_POINT": crash_point} if crash_point else {}
        return Daemon("node-plugin", self.cluster.place, self._command, self.log, environment, lambda: True)

    def launch(self, *, crash_at: str = "") -> None:
        """Start the process, which kills itself at a crash point if one is named, and wait until the kubelet knows it.

        A pod that comes before waits until the kubelet tries again, more than a minute."""
        self.daemon = self._daemon(crash_at)
        written = len(self._log_from(0))
        self.daemon.launch()
        self.wait(lambda: _REGISTERED in self._log_from(written), "registration", 60)

    def _log_from(self, position: int) -> str:
        return self.log.read_text(errors="replace")[position:] if self.log.exists() else ""

    def fail(self, device_id: str, reason: str) -> None:
        """Make a device fail, as its driver would report it."""
        self.control.write_text(f'[unhealthy]\n"{device_id}" = "{reason}"\n')

    def heal(self) -> None:
        self.control.write_text("")

    def records(self) -> list[Path]:
        """Return the files of workloads that hold devices."""
        return sorted((self.state / "workloads").glob("*.json"))

    def cdi_files(self) -> list[Path]:
        return [path for path in self.cluster.cdi_folder.glob("*.json") if "claim-" in path.name]

    def devices_in_slices(self) -> dict[str, Mapping[str, Any]]:
        """Return the published devices by uuid."""
        answer = self.cluster.request("GET", "/apis/resource.k8s.io/v1/resourceslices")
        return {
            device["attributes"]["uuid"]["string"]: device
            for one in answer["items"]
            if one["spec"]["driver"] == GROUP
            for device in one["spec"].get("devices", ())
        }

    def wait_for_devices(self, count: int) -> None:
        self.cluster.wait_for(lambda: len(self.devices_in_slices()) == count, f"{count} published devices")

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> float:
        """Wait for a condition, and return the seconds that it took. Raises AssertionError with the log."""
        started_at = time.monotonic()
        while not condition():
            if time.monotonic() - started_at > timeout_s:
                raise AssertionError(
                    f"no {what} after {timeout_s:g} s; the node plugin says:\n{self.daemon.log_tail()}"
                )
            time.sleep(0.02)
        return time.monotonic() - started_at


@contextmanager
def running_node_plugin(
    cluster: Cluster, folder: Path, *, by: str = "dra", devices: str = _DEVICES, offer: str = "", **settings: str
) -> Iterator[NodePlugin]:
    """Run a node plugin until the block ends. ``offer`` has further settings of the offer of its devices."""
    plugin = NodePlugin(cluster, folder, by=by, devices=devices, offer=offer, **settings)
    try:
        plugin.launch()
        yield plugin
    finally:
        plugin.daemon.stop()


@contextmanager
def running_controllers(cluster: Cluster, folder: Path) -> Iterator[Daemon]:
    """Run the controllers with the account of the chart until the block ends, in a cluster with their resources."""
    cluster.kubectl("apply", "--server-side", "-f", "-", text=crds_yaml())
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    command = [sys.executable, "-m", "ai.backend.cli.main", "kube-acc", "start-controllers"]
    command += ["--kubeconfig", str(account_kubeconfig(cluster, folder, CONTROLLERS_ACCOUNT))]
    environment = {"PYTHONPATH": f"{REPOSITORY / 'src'}", "PATH": "/usr/bin:/bin"}
    controllers = Daemon("controllers", cluster.place, command, folder / "controllers.log", environment, lambda: True)
    controllers.launch()
    try:
        yield controllers
    finally:
        controllers.stop()


def device_class() -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": DEVICE_CLASS},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{GROUP}"'}}]},
    }


def exact_claim(name: str, device_id: str, **request: Any) -> dict[str, Any]:
    """Return a claim of exactly one device, by its id."""
    expression = f'device.attributes["{GROUP}"].uuid == "{device_id}"'
    exactly = {"deviceClassName": DEVICE_CLASS, "selectors": [{"cel": {"expression": expression}}], **request}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def claiming_pod(name: str, claim: str, script: str = "env; exec sleep 1000") -> dict[str, Any]:
    """Return a pod that uses a claim."""
    pod = busybox_pod(name, script, resourceClaims=[{"name": "accelerator", "resourceClaimName": claim}])
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "accelerator"}]}
    return pod
