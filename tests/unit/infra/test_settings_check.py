"""``config check`` names the settings without effect, and daemons refuse what cannot be had (spec 03-02)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.runtimes import parse_runtime_settings
from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings import load_settings, warn_of_keys_without_effect
from ai.backend.infra.settings.check import config
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.runtime.docker.settings import DockerRuntimeSettings

CONTAINER = """
[agent]
mode = "docker"
rpc-listen-addr = { host = "10.20.30.10", port = 6001 }
[container]
port-range = [30000, 31000]
kernel-uid = 1100
kernel-gid = 1101
bind-host = "127.0.0.1"
stats-type = "docker"
sandbox-type = "docker"
jail-args = []
scratch-type = "hostdir"
scratch-root = "/scratches"
scratch-size = "1G"
[resource]
reserved-disk = "8G"
[debug]
enabled = true
skip-container-deletion = false
asyncio = false
enhanced-aiomonitor-task-info = true
log-events = false
[debug.coredump]
enabled = false
path = "./coredumps"
backup-count = 10
size-limit = "64M"
"""


def _check(file: Path, content: str) -> Result:
    file.write_text(content)
    return CliRunner().invoke(config, ["check", str(file)])


def _agent(tmp_path: Path, content: str) -> AgentSettings:
    (tmp_path / "agent.toml").write_text(content)
    return load_settings(AgentSettings, name="agent", path=tmp_path / "agent.toml")


def test_the_table_container_sets_the_runtime(tmp_path: Path) -> None:
    settings = _agent(tmp_path, CONTAINER)
    runtime = parse_runtime_settings(settings)
    assert isinstance(runtime, DockerRuntimeSettings)
    assert (runtime.kernel_uid, runtime.kernel_gid, runtime.stats_type) == (1100, 1101, "docker")
    assert (runtime.homes, runtime.reserved_bytes) == (Path("/scratches"), 8 << 30)
    assert settings.underlay_address == "10.20.30.10"
    assert settings.debug.log_level == "DEBUG"


def test_the_table_runtime_wins(tmp_path: Path) -> None:
    own = '[runtime]\nkernel-uid = 5\nreserved_bytes = 7\n[underlay]\naddress = "10.0.0.1"\n'
    settings = _agent(tmp_path, CONTAINER + own)
    runtime = parse_runtime_settings(settings)
    assert (runtime.kernel_uid, runtime.kernel_gid, runtime.reserved_bytes) == (5, 1101, 7)
    assert settings.underlay_address == "10.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "node-1", "::1"])
def test_what_is_no_address_of_the_node_is_none_of_its_networks(tmp_path: Path, host: str) -> None:
    settings = _agent(tmp_path, f'[agent]\nrpc-listen-addr = {{ host = "{host}", port = 6001 }}\n')
    assert settings.underlay_address == ""


@pytest.mark.parametrize(
    ("content", "key", "reason"),
    [
        ('[container]\njail-args = ["-x"]', "container.jail-args", "there is no jail"),
        ('[container]\nsandbox-type = "jail"', "container.sandbox-type", "there is no jail"),
        ('[container]\nscratch-type = "memory"', "container.scratch-type", "hostdir"),
        ('[container]\nstats-type = "docker"', "container.stats-type", "control groups"),
        ("[container]\nkernel-uid = 0", "container.kernel-uid", "greater than or equal to 1"),
        ("[container]\nport-rang = [1, 2]", "container.port-rang", "there is no such key"),
        ("[debug]\nlog-heartbeats = true", "debug.log-heartbeats", "logging.pkg-ns"),
        ("[debug]\nskip-container-deletion = true", "debug.skip-container-deletion", "always removed"),
        ("[debug.coredump]\nenabled = true", "debug.coredump.enabled", "core dumps"),
        ('[agent]\nmode = "dummy"', "agent.mode", "'docker' or 'process'"),
        ("[runtime]\nkernel-udi = 3", "runtime.kernel-udi", "there is no such key"),
        ('[manager]\ndisabled-plugins = ["x"]', "manager.disabled-plugins", "resource group"),
        ("[manager]\nuse_sokovan = false", "manager.use_sokovan", "one scheduler"),
        ('[manager]\n[logging]\ndrivers = ["logstash"]', "logging.drivers.0", "not to logstash"),
        ('[manager]\n[otel]\nenabled = true\nendpoint = "collector"', "otel", "http://HOST:PORT"),
        ("[manager]\n[docker-registry]\nssl-verfy = false", "docker-registry.ssl-verfy", "no such key"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(tmp_path: Path, content: str, key: str, reason: str) -> None:
    result = _check(tmp_path / f"{'manager' if 'manager' in content else 'agent'}.toml", content)
    assert result.exit_code == 1
    assert key in result.output
    assert reason in result.output


def test_what_has_no_effect_is_named(tmp_path: Path) -> None:
    result = _check(tmp_path / "any.toml", CONTAINER)
    assert result.exit_code == 0, result.output
    first_line, *lines = result.output.splitlines()
    assert first_line == f"The agent can use {tmp_path / 'any.toml'}."
    names = {line.split(":")[0].strip() for line in lines[1:]}
    assert names == {"container.scratch-size", "debug.enhanced-aiomonitor-task-info"}


def test_each_file_is_judged_by_its_own_model(tmp_path: Path) -> None:
    storage = '[storage-proxy]\nsecret = "s"\n[api.manager]\nsecret = "m"\n[etcd]\naddr = "a:1"\n'
    result = _check(tmp_path / "x.toml", storage)
    assert "The storage proxy can use" in result.output
    assert "etcd: this file is the whole configuration" in result.output
    usable = _check(tmp_path / "x.toml", "[manager]\nnum-proc = 2\n").output
    assert "The manager can use" in usable
    assert "All its settings have effect." in usable
    assert "is not TOML" in _check(tmp_path / "x.toml", "=").output


def test_a_daemon_warns_of_settings_without_effect(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_keys_without_effect(ManagerSettings.model_validate({"manager": {"hide-agents": True, "num-proc": 1}}))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "manager.hide-agents has no effect" in caplog.text


def test_connections_to_the_database_are_those_of_the_published_table() -> None:
    table = {"addr": "h:1", "pool-size": 3, "max-overflow": 0, "pool-recycle": 60, "pool-pre-ping": True}
    settings = ManagerSettings.model_validate({"db": table})
    assert settings.db is not None
    pool = settings.db.pool
    assert (pool.size, pool.max_overflow, pool.recycle_s, pool.tries_connections) == (3, 0, 60, True)


def test_the_error_of_a_daemon_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"container\.jail-args: there is no jail"):
        _agent(tmp_path, '[container]\njail-args = ["-x"]\n')


def test_a_runtime_that_does_not_exist_is_named_with_its_key(tmp_path: Path) -> None:
    result = _check(tmp_path / "agent.toml", '[agent]\nruntime = "dokcer"\n')
    assert "  agent.runtime: there is no runtime 'dokcer'; known are process" in result.output
