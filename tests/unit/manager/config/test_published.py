"""The published files are read as they are (spec 03-02)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings import load_settings
from ai.backend.manager.composition.backing_services import settings_of_process
from ai.backend.manager.config.settings import ManagerSettings

MANAGER = """
[etcd]
namespace = "local"
addr = { host = "bai-m1", port = 8120 }
user = ""
password = ""

[db]
type = "postgresql"
addr = { host = "bai-m1", port = 8100 }
name = "backend"
user = "postgres"
password = "dev/el:ove"

[manager]
num-proc = 2
service-addr = { host = "0.0.0.0", port = 8081 }
ssl-enabled = false
heartbeat-timeout = 40.0
rpc-auth-manager-keypair = "fixtures/manager.key_secret"
pid-file = "manager.pid"
disabled-plugins = []
hide-agents = true
distributed-lock = "filelock"

[docker-registry]
ssl-verify = false

[logging]
level = "INFO"
drivers = ["console", "file"]
[logging.pkg-ns]
"" = "WARNING"
"ai.backend" = "INFO"
[logging.console]
colored = true
format = "verbose"
[logging.file]
path = "./logs"
filename = "manager.log"
backup-count = 10
rotation-size = "10M"

[debug]
enabled = false
enhanced-aiomonitor-task-info = true
"""

AGENT = """
[etcd]
namespace = "local"
addr = { host = "bai-m1", port = 8120 }
user = ""
password = ""

[agent]
mode = "docker"
rpc-listen-addr = { host = "10.20.30.10", port = 6001 }
scaling-group = "gpu"
pid-file = "/home/bai/agent/agent.pid"
event-loop = "uvloop"

[container]
port-range = [30000, 31000]
kernel-uid = 1100
scratch-type = "hostdir"

[watcher]
service-addr = { host = "bai-a01", port = 6009 }
ssl-enabled = false
target-service = "backendai-agent.service"
soft-reset-available = false

[resource]
reserved-cpu = 1
reserved-mem = "1G"
reserved-disk = "8G"

[debug]
enabled = false
[debug.coredump]
enabled = false
"""


def test_the_published_manager_file_means_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "manager.toml").write_text(MANAGER)
    read = load_settings(ManagerSettings, name="manager", path=tmp_path / "manager.toml")
    assert read.database_url == "postgresql://postgres:dev%2Fel%3Aove@bai-m1:8100/backend"
    assert (read.listen.host, read.listen.port) == ("0.0.0.0", 8081)
    assert read.etcd is not None
    assert read.etcd.endpoints == ["http://bai-m1:8120"]
    assert read.agents.heartbeat_timeout_s == 40
    assert read.agent_link.key_file == Path("fixtures/manager.key_secret")


@pytest.mark.parametrize("bad", ["ssl-enabled = true", "num_procs = 2", 'service-addr = "nowhere"'])
def test_what_cannot_be_meant_is_refused(tmp_path: Path, bad: str) -> None:
    (tmp_path / "manager.toml").write_text(f"[manager]\n{bad}\n")
    with pytest.raises(InvalidInput):
        load_settings(ManagerSettings, name="manager", path=tmp_path / "manager.toml")


def test_addresses_come_from_the_environment_as_text() -> None:
    environ = {"M_ETCD__ADDR": "a:1,b:2", "M_REDIS__ADDR": "c:3", "M_REDIS__PASSWORD": "p@ss"}
    read = load_settings(ManagerSettings, name="nothing", env_prefix="M_", environ=environ)
    assert read.etcd is not None
    assert read.etcd.endpoints == ["http://a:1", "http://b:2"]
    assert read.redis is not None
    assert read.redis.url == "redis://:p%40ss@c:3/0"


def test_the_published_agent_file_means_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(AGENT)
    read = load_settings(AgentSettings, name="agent", path=tmp_path / "agent.toml")
    assert read.agent.resource_group == "gpu"
    assert read.agent.runtime == "docker"
    assert (read.resource.reserved_cpu, read.resource.reserved_mem) == (1, 1 << 30)
    assert read.watcher.service_addr.host == "bai-a01"


def test_each_process_has_ports_of_its_own_for_agents() -> None:
    link = {"bind": "tcp://0.0.0.0:6011", "advertise": "tcp://m-1:7011", "data-port": 6100}
    settings = ManagerSettings.model_validate({"agent-link": link})
    third = settings_of_process(settings, 2).agent_link
    assert (third.bind, third.advertise, third.data_port) == ("tcp://0.0.0.0:6013", "tcp://m-1:7013", 6102)
    assert settings_of_process(settings, 0).agent_link == settings.agent_link
    chosen = ManagerSettings.model_validate({"agent-link": {"bind": "tcp://127.0.0.1:0"}})
    assert settings_of_process(chosen, 2).agent_link == chosen.agent_link
    for wrong in ({"bind": "tcp://0.0.0.0:65535"}, {"bind": "ipc:///run/link"}, {"advertise": "tcp://m-1"}):
        with pytest.raises(InvalidInput, match="num-proc"):
            settings_of_process(ManagerSettings.model_validate({"agent-link": wrong}), 1)
