"""The cuda plugin in a cluster, over a stand-in for the driver's library."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.cuda import build_stub

GPU = "GPU-00000000-0000-4000-8000-000000000000"
pytestmark = [pytest.mark.needs("gcc"), pytest.mark.timeout(120)]


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    folder = tmp_path / "driver"
    folder.mkdir()
    return build_stub(folder)


@pytest.fixture
def cluster(tmp_path: Path, driver: Path) -> Iterator[Cluster]:
    (tmp_path / "agent.toml").write_text('[agent]\nallow-compute-plugins = ["cuda"]\n')
    options = ("--agent-config", str(tmp_path / "agent.toml"))
    with running_cluster(tmp_path / "data", *options, env={"LD_LIBRARY_PATH": str(driver)}) as cluster:
        yield cluster


def offered(cluster: Cluster) -> dict[str, str]:
    (agent,) = cluster.json("admin", "agent", "list", admin=True)["items"]
    return {k: v for k, v in agent["available_slots"].items() if k.startswith("cuda") and v != "0"}


def test_gpus_and_slices_are_offered_measured_and_taken_out(cluster: Cluster, driver: Path) -> None:
    assert wait_until(lambda: offered(cluster), what="GPUs") == {"cuda.device": "1", "cuda.device:20g-mig": "1"}
    assert "nvidia::mig_profile::3g.20gb" in cluster.run("resource", "variants", check=True).stdout

    def metrics() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.port}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    wait_until(lambda: "DCGM_FI_DEV_FB_USED{" in metrics(), what="the metrics")
    line = next(line for line in metrics().splitlines() if line.startswith("DCGM_FI_DEV_FB_USED{") and GPU in line)
    assert float(line.split()[-1]) == 960, "MiB"
    if not Path("/dev/nvidia0").exists():
        refused = cluster.run("run", "--rm", "-r", "cuda.device=1", "-c", "print(1)", "python")
        assert re.search(
            r"the device '/dev/nvidia(0|ctl)' does not exist on this node", refused.stdout + refused.stderr
        )
    (driver / "xid").write_text("79")
    wait_until(lambda: offered(cluster) == {"cuda.device:20g-mig": "1"}, timeout_s=10, what="the GPU being taken out")
    assert f"{GPU} is unhealthy: Xid 79: GPU has fallen off the bus" in (
        cluster.run("admin", "agent", "list", admin=True, check=True).stdout
    )
