"""All Debian packages under a real systemd: installed, used, rebooted, upgraded with a session that runs, purged."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import wait_until
from tests.support.debian import DebianMachine, running_machine
from tests.support.docker_engine import DockerEngine
from tests.support.release import built_release

pytestmark = [pytest.mark.slow, pytest.mark.needs("docker", "root"), pytest.mark.timeout(900)]
UNITS = (
    "storage-proxy", "manager", "agent", "watcher", "web", "app-proxy-coordinator", "app-proxy-worker",
)  # fmt: skip
UNRESTRICTED = {"backendai-agent"}
MGR = "runuser -u backendai -- backend.ai mgr"
SET_UP = f"""
sed -i 's/8100/5432/;s/8110/6379/;s/8120/2379/' /etc/backend.ai/*.toml
{MGR} generate-rpc-keypair /etc/backend.ai manager
{MGR} generate-rpc-keypair /etc/backend.ai agent
{MGR} schema oneshot
{MGR} etcd put-json volumes /etc/backend.ai/volumes.json
{MGR} allow-agent i-node-1 "$(cat /etc/backend.ai/agent.key)"
{MGR} bootstrap --vfolder-host storage-1:local > /root/keys
systemctl enable --now {" ".join(f"backendai-{unit}" for unit in UNITS)}
"""
SERVICES = """
mkdir -p /etc/systemd/system/redis-server.service.d
printf '[Service]\\nPrivateUsers=no\\n' > /etc/systemd/system/redis-server.service.d/container.conf
systemctl daemon-reload; systemctl reset-failed; systemctl restart redis-server
su postgres -c "psql -qc \\"CREATE ROLE backendai LOGIN PASSWORD 'change-me'\\" -c \\"CREATE DATABASE backend
    OWNER backendai TEMPLATE template0 LOCALE 'C' ENCODING 'UTF8'\\""
"""
"""The database, and a Redis without a user namespace, which systemd cannot make in the container."""
AS_USER = """
export BACKEND_ENDPOINT=http://127.0.0.1:8081 $(grep BACKEND /root/keys | tail -n 2)
run() { timeout 30 backend.ai run --name "$1" --mount data -c "$2" python:3.11; }
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_release(tmp_path_factory)


@pytest.fixture(scope="module")
def machine(docker_engine: DockerEngine, release: Path) -> Iterator[DebianMachine]:
    with running_machine(docker_engine, "packages", f"{release}:/release:ro") as machine:
        machine.run(SERVICES)
        yield machine


def _answers(machine: DebianMachine, script: str) -> str:
    """Returns what a user's commands print, once daemons that were just started answer them."""
    last: list[str] = []

    def succeeds() -> bool:
        try:
            last.append(machine.run(AS_USER + script))
        except AssertionError as error:
            last.append(str(error))
            return False
        return True

    try:
        wait_until(succeeds, timeout_s=60, what=script)
    except AssertionError:
        log = machine.run("journalctl --no-pager -o cat -n 60 -u 'backendai-*'")
        raise AssertionError(f"{last[-1]}\n{log}") from None
    return last[-1]


def test_from_packages_to_purged(machine: DebianMachine) -> None:
    """One story: each part needs the one before, and a second installation would take half a minute."""
    before = _files(machine)
    started = time.monotonic()
    machine.run("dpkg --install /release/*.deb")
    machine.run(SET_UP)
    _answers(machine, "backend.ai vfolder create data storage-1:local")
    printed = _answers(machine, 'run stays \'open("/home/work/data/x", "w").write("kept"); print(6 * 7)\'')
    taken_s = time.monotonic() - started
    print(f"from dpkg to the first session's answer: {taken_s:.0f} s")
    assert "42" in printed
    _check_units(machine)
    _check_watcher(machine)
    _check_upgrade(machine)
    _check_reboot(machine)
    _check_purge(machine, before)


def _check_units(machine: DebianMachine) -> None:
    for unit in UNITS:
        state = machine.run(f"systemctl show -p ActiveState,NRestarts --value backendai-{unit}").split()
        assert state == ["0", "active"] or state == ["active", "0"], (unit, state)
        text = machine.run(f"systemd-analyze security --no-pager backendai-{unit} | tail -n 1")
        match = re.search(r"exposure level for \S+: ([0-9.]+)", text)
        assert match is not None, text
        assert (float(match[1]) <= 4.0) == (f"backendai-{unit}" not in UNRESTRICTED), text
    machine.run("test -s /var/lib/backend.ai/web/logins.db -a -s /var/lib/backend.ai/app-proxy/proxy-worker-state.json")
    refused = machine.run(
        "journalctl --no-pager -o cat -u 'backendai-*' | grep -iE 'read-only file|not permitted' || true"
    )
    assert refused == ""


def _check_watcher(machine: DebianMachine) -> None:
    """The restricted watcher restarts the agent, whose session goes on."""
    before = machine.run("systemctl show -p MainPID --value backendai-agent")
    machine.run(
        'python3 -c \'import urllib.request as u; u.urlopen(u.Request("http://127.0.0.1:6009/agent/restart",'
        ' method="POST", headers={"X-BackendAI-Watcher-Token": "change-me-as-well"}))\''
    )
    assert machine.run("systemctl show -p MainPID --value backendai-agent") != before
    assert "kept" in _answers(machine, "run stays 'n = 42; print(open(\"/home/work/data/x\").read())'")


def _check_upgrade(machine: DebianMachine) -> None:
    """The packages of a newer version replace the program; settings and the session's processes stay."""
    machine.run(
        """
        mkdir -p /root/newer
        for file in /release/*.deb; do
            rm -rf /tmp/newer; dpkg-deb --raw-extract "$file" /tmp/newer
            sed -i 's/^Version: .*/&+1/; s/backendai (= [^)]*/&+1/' /tmp/newer/DEBIAN/control
            test ! -d /tmp/newer/opt || touch /tmp/newer/opt/backend.ai/newer
            test ! -f /tmp/newer/etc/backend.ai/manager.toml || echo '# newer' >> /tmp/newer/etc/backend.ai/manager.toml
            dpkg-deb --build -Znone /tmp/newer "/root/newer/$(basename "$file")" > /dev/null
        done
        """
    )
    session = machine.run("pgrep -f runner_main.py")
    pids = machine.run("systemctl show -p MainPID --value 'backendai-*'")
    machine.run("dpkg --force-confold --install /root/newer/*.deb")
    assert machine.run("systemctl show -p MainPID --value 'backendai-*'") == pids, "an upgrade restarts nothing"
    machine.run("test -e /opt/backend.ai/newer; grep -q 5432 /etc/backend.ai/manager.toml")
    machine.run("systemctl restart backendai-manager backendai-storage-proxy backendai-agent backendai-watcher")
    machine.run("systemctl restart backendai-web backendai-app-proxy-coordinator backendai-app-proxy-worker")
    assert "42 kept" in _answers(machine, "run stays 'print(n, open(\"/home/work/data/x\").read())'")
    assert machine.run("pgrep -f runner_main.py") == session


def _check_reboot(machine: DebianMachine) -> None:
    """Processes end with the machine, so their session does; folders, and who had which session, stay."""
    machine.reboot()
    query = "psql -Atc \"SELECT status FROM sessions WHERE name = 'stays'\" backend"
    wait_until(
        lambda: machine.run(f"runuser -u postgres -- {query} || true").strip() == "TERMINATED",
        timeout_s=60,
        what="the end of the session",
    )
    assert "kept" in _answers(machine, "run later 'print(open(\"/home/work/data/x\").read())'")


def _check_purge(machine: DebianMachine, before: set[str]) -> None:
    machine.run("dpkg --purge $(dpkg-query -f '${Package} ' -W 'backendai*')")
    assert machine.run("pgrep -af '[b]ackend.ai|[r]unner_main' || true") == ""
    assert machine.run("systemctl list-units --all --no-legend 'backendai*'; getent passwd backendai || true") == ""
    left = _files(machine) - before
    assert {path for path in left if not path.startswith("/srv/backend.ai")} == set()


def _files(machine: DebianMachine) -> set[str]:
    """Returns the paths of all files that packages, or their daemons, may have made."""
    places = "/etc /opt/* /srv /usr /var/lib /var/log /var/cache /root /home"
    ignored = (
        r"^/(var/lib/(dpkg|postgresql|redis|etcd|systemd|adduser)|var/log|var/cache/man|root/|etc/systemd/system/redis)"
    )
    ignored += r"|^/etc/(passwd|group|g?shadow|subuid|subgid)-?$"
    return set(machine.run(f"shopt -s nullglob; find {places} -xdev | grep -vE '{ignored}'").splitlines())


def test_the_release_holds_all_packages(release: Path) -> None:
    listing = subprocess.run(["ls", str(release)], capture_output=True, text=True, check=True).stdout
    assert listing.count(".deb") == 6
