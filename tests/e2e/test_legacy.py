"""A vendor's v1 plugin in a cluster: found by its entry point, used by sessions, refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster, wait_until
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine
from tests.support.legacy import SITE

SMALL = ("-r", "cpu=1", "-r", "mem=256m")
LOOK = """
import os, stat, subprocess, sys
maps = [sys.executable, "-c", "print(open('/proc/self/maps').read())"]
print(os.environ["ACME_VISIBLE_DEVICES"], os.environ["ACME_RUNTIME"])
print([line for line in open("/home/config/resource.txt").read().split() if line.startswith("ACME_GLOBAL")])
node = os.stat("/dev/acme1")
print(stat.S_ISCHR(node.st_mode), os.major(node.st_rdev), os.minor(node.st_rdev))
print(open("/etc/acme.conf").read().strip(), open("/opt/acme/lib/libacme.so").read())
print(os.environ["LD_PRELOAD"], "/opt/kernel/libacmehook.so" in subprocess.check_output(maps, text=True))
"""


def vendor_config(place: Path) -> str:
    """The agent's part of a node with the vendor's devices, library and hook, which are made in ``place``."""
    library = place / "lib"
    library.mkdir()
    (library / "libacme.so").write_text("a library")
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm" in line}
    hook = Path(shutil.copy(min(loaded), place / "libacmehook.so"))
    return f'[agent]\nallow-compute-plugins = ["acme"]\n[plugins.acme]\nlibrary = "{library}"\nhooks = "{hook}"\n'


IN_CONTAINER = "print(os.path.exists('/.dockerenv'))"
SEEN = [
    "0,1 v1",
    "['ACME_GLOBAL_DEVICE_IDS=0:0,1:1']",
    "True 1 3",
    "devices=2 a library",
    "/opt/kernel/libacmehook.so True",
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """``i-local`` has devices that can be used, ``i-local-2`` shares and a wish that nobody can fulfil, ``i-local-3`` a
    plugin that fails."""
    configs = tmp_path / "agents"
    configs.mkdir()
    (configs / "i-local.toml").write_text(vendor_config(tmp_path))
    (configs / "i-local-2.toml").write_text(
        '[agent]\nallow-compute-plugins = ["acme-shares"]\n[plugins.acme-shares]\nulimits = "memlock"\n'
    )
    (configs / "i-local-3.toml").write_text(
        '[agent]\nallow-compute-plugins = ["acme-bad"]\n[plugins.acme]\nfault = "create_alloc_map=raise"\n'
    )
    options = ("--agents", "3", "--agent-config", str(configs))
    with running_cluster(tmp_path / "data", *options, env={"PYTHONPATH": str(SITE)}) as cluster:
        yield cluster


def offered(cluster: Cluster) -> dict[str, str]:
    agents = cluster.json("admin", "agent", "list", admin=True)["items"]
    slots = {name: amount for agent in agents for name, amount in agent["available_slots"].items()}
    return {name: amount for name, amount in slots.items() if name.startswith("acme") and amount != "0"}


def shown(cluster: Cluster, *command: str) -> str:
    return " ".join(cluster.run(*command, admin=True, check=True).stdout.split())


@pytest.mark.needs("isolation", "root")
@pytest.mark.timeout(180)
def test_a_session_gets_what_a_v1_plugin_gives(cluster: Cluster) -> None:
    wanted = {"acme.device": "2", "acme-shares.shares": "2.7"}
    wait_until(lambda: offered(cluster) == wanted, what="the slots of both v1 plugins")
    done = cluster.run("run", "--rm", "-q", *SMALL, "-r", "acme.device=2", "-c", LOOK, "python", check=True)
    assert done.stdout.splitlines()[-5:] == SEEN
    refused = cluster.run("run", "--rm", *SMALL, "-r", "acme-shares.shares=0.5", "-c", "print(1)", "python")
    assert refused.returncode != 0
    assert (
        "the v1 plugin acme-shares wants the Docker argument HostConfig.Ulimits, which has no counterpart here"
        in " ".join((refused.stdout + refused.stderr).split())
    )
    wait_until(
        lambda: "create_alloc_map raised OSError: the driver is gone" in shown(cluster, "admin", "agent", "list"),
        what="the reason of the plugin that fails",
    )


@pytest.mark.timeout(180)
def test_a_v1_plugin_shows_its_devices_to_no_diagnosis(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(vendor_config(tmp_path))
    with running_cluster(tmp_path / "data", "--agent-config", str(config), env={"PYTHONPATH": str(SITE)}) as cluster:
        wait_until(lambda: offered(cluster) == {"acme.device": "2"}, what="the slots of the v1 plugin")
        devices = ("--assign-agent", "i-local", "--diagnose", "acme/ACME-0")
        refused = cluster.run("run", "--rm", *SMALL, *devices, "-c", "print(1)", "python", admin=True)
        assert refused.returncode != 0
        said = " ".join((refused.stdout + refused.stderr).split())
        assert "The plugin acme of the agent i-local shows its devices only to sessions that hold them" in said
        assert cluster.json("ps", admin=True)["count"] == 0


@pytest.mark.needs("docker", "root")
@pytest.mark.timeout(180)
def test_a_container_gets_what_a_v1_plugin_gives(tmp_path: Path, docker_engine: DockerEngine) -> None:
    """On the runtime that v1 was written for: the same plugin, the same session, a container."""
    config = tmp_path / "agent.toml"
    config.write_text(vendor_config(tmp_path))
    env = {"DOCKER_HOST": docker_engine.host, "PYTHONPATH": str(SITE)}
    options = ("--runtime", "docker", "--agent-config", str(config))
    with running_cluster(tmp_path / "data", *options, env=env) as cluster:
        wait_until(lambda: offered(cluster) == {"acme.device": "2"}, what="the slots of the v1 plugin")
        command = ("run", "--rm", "-q", *SMALL, "-r", "acme.device=2", "-c", f"{LOOK}{IN_CONTAINER}", PYTHON_IMAGE)
        done = cluster.run(*command, check=True)
        assert done.stdout.splitlines()[-6:] == [*SEEN, "True"]
