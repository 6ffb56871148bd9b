"""The keys of the link are replaced by the commands of docs/howto/certificates.md while daemons and a session run."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client_runs import run_to_end
from tests.support.cluster import wait_until
from tests.support.deployment import AGENT, Deployment
from tests.support.load import Load, session_of

PAGE = Path(__file__).parents[2] / "docs/howto/certificates.md"
pytestmark = [pytest.mark.needs("postgres", "redis", "etcd"), pytest.mark.timeout(300)]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as servers:
        Path(servers).chmod(0o755)
        deployment = Deployment(tmp_path / "site", Path(servers))
        try:
            deployment.start_servers()
            yield deployment
        finally:
            deployment.stop()


def _commands(title: str) -> list[str]:
    """Returns the commands below a title of the page's last part."""
    part = PAGE.read_text().partition("## The keys of the link")[2].partition(f"**{title}.**")[2].partition("**")[0]
    return re.findall(r"^ {4}(.+)$", part, re.MULTILINE)


def _type(deployment: Deployment, command: str) -> None:
    program = f"{sys.executable} -m ai.backend.cli.main mgr --config /etc/backend.ai/manager.toml"
    command = deployment.here(command.replace("backend.ai mgr", program))
    subprocess.run(["bash", "-ec", command], check=True, env=deployment.environment(), cwd=deployment.root)


def _log(deployment: Deployment, name: str) -> str:
    return (deployment.root / f"{name}.log").read_text()


def test_as_the_page_shows(deployment: Deployment) -> None:
    users = deployment.set_up()
    for name in ("storage-proxy", "manager", "agent"):
        deployment.start_one(name)
    deployment.wait_alive()
    with session_of(users["user"]) as session:
        session.ComputeSession.get_or_create("python", name="stays", resources={"cpu": 1, "mem": "64m"})
        assert run_to_end(session, "stays", "kept, count = 42, 0") == ""

    first_key = (deployment.root / "etc/agent.key").read_text().strip()
    with Load(users["user"]) as load:
        load.go_on()
        *first, last = _commands("An agent")
        assert len(first) == 3
        for command in first:
            _type(deployment, command)
        wait_until(lambda: "goes over to other keys" in _log(deployment, "agent"), what="the agent's new pair")
        load.go_on()
        _type(deployment, last)
        load.go_on()
        assert load.longest_s == 0, "a request failed"
    assert first_key not in (deployment.root / f"etc/agents/{AGENT}.pub").read_text()

    with Load(users["user"]) as load:
        load.go_on()
        for command in _commands("The managers"):
            _type(deployment, command)
        wait_until(lambda: "agents connect by the key" in _log(deployment, "manager"), what="the managers' new key")
        load.go_on()
    print(f"with another key of the managers the longest interruption took {load.longest_s:.1f} s")
    assert load.refusals == []
    assert load.longest_s < 30
    for name in ("manager", "agent"):
        assert deployment.daemons[name].poll() is None
