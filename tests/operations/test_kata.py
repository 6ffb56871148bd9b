"""What Kata's monitor measures of a sandbox, joined with the kernel that the sandbox is of, on the real Prometheus.

The monitor itself is a stand-in that writes what `kata-monitor` documents (docs/design/kata-2-0-metrics.md of Kata
Containers): it cannot be built, since the module proxy has no version of it, and Kata needs a hypervisor.
"""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.cluster import running_cluster, wait_until
from tests.support.prometheus import running_monitoring

pytestmark = [pytest.mark.needs("prometheus", "alertmanager"), pytest.mark.timeout(120)]
OBSERVE = Path(__file__).parents[2] / "docs/howto/observe.md"
RESIDENT = "kata_hypervisor_proc_status"


@contextmanager
def _kata_monitor(sandboxes: dict[str, dict[str, str]]) -> Iterator[str]:
    """A server with the sandboxes of a node; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            lines = [f"# HELP {RESIDENT} Hypervisor process status.", f"# TYPE {RESIDENT} gauge"]
            for number, (sandbox, pod) in enumerate(sorted(sandboxes.items()), start=1):
                labels = "".join(f',{name}="{value}"' for name, value in pod.items())
                for item, value in (("vmrss", number * 2**20), ("vmsize", 2**40)):
                    lines.append(f'{RESIDENT}{{item="{item}",sandbox_id="{sandbox}"{labels}}} {value}')
                lines.append(f'kata_guest_load{{item="load1",sandbox_id="{sandbox}"{labels}}} 0.5')
            lines += ["# TYPE kata_monitor_running_shim_count gauge"]
            lines += [f"kata_monitor_running_shim_count {len(sandboxes)}", ""]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write("\n".join(lines).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _pod(uid: str, name: str) -> dict[str, str]:
    return {"cri_uid": uid, "cri_name": name, "cri_namespace": "backendai"}


def test_sandboxes_are_joined_with_their_sessions(tmp_path: Path) -> None:
    sandboxes: dict[str, dict[str, str]] = {"f00": _pod("0d3c9d3a-of-others", "coredns")}
    with running_cluster(tmp_path / "data") as cluster, _kata_monitor(sandboxes) as kata:
        token = (cluster.data_dir / "keys/monitoring.secret").read_text().strip()
        url = f"http://127.0.0.1:{cluster.port}/metrics/kernels"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=10)
        with running_monitoring(tmp_path / "monitoring", cluster.port, token, kata_monitors=[kata]) as monitoring:
            sessions: dict[str, str] = {}
            for name in ("as-pod", "as-container"):
                cluster.run("start", "-q", "-t", name, "-r", "cpu=1", "-r", "mem=64m", "python", check=True)
                sessions[name] = cluster.json("info", name)["id"]
            wait_until(lambda: len(monitoring.query("backendai_kernel_workload")) == 2, what="the kernels")
            workloads = {
                sample["metric"]["session_id"]: sample["metric"]
                for sample in monitoring.query("backendai_kernel_workload")
            }
            assert set(workloads) == set(sessions.values())
            # A pod's sandbox has an id of its own; that of a container of Docker has the container's, and no pod.
            sandboxes["abc"] = _pod(workloads[sessions["as-pod"]]["workload_id"], "kernel-1")
            of_container = workloads[sessions["as-container"]]["workload_id"]
            sandboxes[of_container] = dict.fromkeys(("cri_uid", "cri_name", "cri_namespace"), "")
            joined = "backendai:kata_hypervisor_memory:bytes"
            wait_until(lambda: len(monitoring.query(joined)) == 2, what="the joined sandboxes")
            found = {
                sample["metric"]["session_id"]: (sample["metric"], float(sample["value"][1]))
                for sample in monitoring.query(joined)
            }
            expected = {
                sessions[name]: (sorted(sandboxes).index(sandbox) + 1) * 2**20
                for name, sandbox in (("as-pod", "abc"), ("as-container", of_container))
            }
            assert {session: size for session, (_, size) in found.items()} == expected
            for session, (labels, _) in found.items():
                assert labels["agent"] == "i-local"
                assert labels["kernel_id"] == workloads[session]["kernel_id"]
            (query,) = re.findall(r"^    sum by.*\n.*$", OBSERVE.read_text(), re.MULTILINE)
            assert {one["metric"]["session_id"] for one in monitoring.query(query)} == set(sessions.values())
            shims = monitoring.query("kata_monitor_running_shim_count")
            assert [(one["metric"]["job"], one["value"][1]) for one in shims] == [("kata-monitor", "3")]
            cluster.run("rm", "as-pod", check=True)
            wait_until(lambda: len(monitoring.query(joined)) == 1, what="the end of a session")
