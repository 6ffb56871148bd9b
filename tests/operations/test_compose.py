"""``deploy/compose`` by Docker Compose itself: from nothing to a session, and to nothing again.

The images of PostgreSQL, Valkey and etcd are stand-ins, since no registry can be reached: Debian's programs with what
the images document of their entry points. That of the daemons is the release's own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from tools.kube.families import families

from tests.support.debian import MACHINE, docker, import_image, root_archive
from tests.support.docker_engine import DockerEngine, end_engine
from tests.support.release import built_release
from tests.support.transcripts import examples, matches, run

DEPLOY = Path(__file__).parents[2] / "deploy"
PAGE = DEPLOY.parent / "docs/howto/run-a-cluster.md"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]
DATABASES = ("postgres", "redis", "etcd")
POSTGRES = r"""#!/bin/bash
# What https://hub.docker.com/_/postgres documents: a first start makes the cluster of POSTGRES_USER and POSTGRES_DB.
set -euo pipefail
as_postgres() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    install -d -o postgres -g postgres -m 700 "$PGDATA"
    as_postgres sh -c 'umask 077; echo "$POSTGRES_PASSWORD" > /tmp/password'
    as_postgres initdb -D "$PGDATA" -U "$POSTGRES_USER" --pwfile=/tmp/password $POSTGRES_INITDB_ARGS
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
    echo "unix_socket_directories = '/tmp'" >> "$PGDATA/postgresql.conf"
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    as_postgres pg_ctl -D "$PGDATA" -o "-c listen_addresses=''" -w start
    as_postgres createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
    as_postgres pg_ctl -D "$PGDATA" -w stop
fi
exec setpriv --reuid=postgres --regid=postgres --init-groups "$@"
"""
STAND_INS = {
    "postgres": (
        'COPY entrypoint /\nRUN chmod 755 /entrypoint\nENTRYPOINT ["/entrypoint"]\n'
        "ENV PGDATA=/var/lib/postgresql/data PGHOST=/tmp PATH=/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    ),
    # Its own entry point turns the protected mode off.
    "redis": (
        "RUN ln -s redis-server /usr/bin/valkey-server && ln -s redis-cli /usr/bin/valkey-cli\n"
        'ENTRYPOINT ["/bin/sh", "-c", "exec \\"$@\\" --protected-mode no", "--"]'
    ),
    "etcd": "RUN mkdir /etcd-data",
}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _published(name: str) -> int:
    ((host, port, _),) = (entry.split(":") for entry in SERVICES[name]["ports"])
    assert host == "127.0.0.1", "only this machine reaches them"
    return int(port)


def test_the_settings_name_the_ports() -> None:
    settings = tomllib.loads((DEPLOY / "config/manager.toml").read_text())
    addresses = (settings["db"]["addr"], settings["redis"]["addr"], settings["etcd"]["addr"])
    assert [address["port"] for address in addresses] == [_published(name) for name in DATABASES]
    environment = SERVICES["postgres"]["environment"]
    default = re.fullmatch(r"\$\{BACKENDAI_DB_PASSWORD:-(.+)\}", environment["POSTGRES_PASSWORD"])
    assert default is not None
    assert default[1] == settings["db"]["password"]
    assert environment["POSTGRES_USER"] == settings["db"]["user"]
    assert environment["POSTGRES_DB"] == settings["db"]["name"]


@contextmanager
def _network() -> Iterator[Path]:
    name = f"bai-compose-{uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield Path("/run/netns") / name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def _make_stand_ins(engine: DockerEngine, folder: Path) -> None:
    base = "test/services:1"
    import_image(engine, base, root_archive(MACHINE))
    for service, lines in STAND_INS.items():
        context = folder / service
        context.mkdir()
        (context / "Dockerfile").write_text(f"FROM {base}\n{lines}\n")
        (context / "entrypoint").write_text(POSTGRES)
        docker(engine, "build", "--network=none", "-t", SERVICES[service]["image"], str(context), timeout_s=120)


@pytest.mark.needs("docker", "root", "ip")
def test_a_reader_gets_from_nothing_to_a_session_and_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    """By the commands of the page, with an engine and a network of their own: no port of this machine is used."""
    compose = families()["compose"]
    if not compose.is_built():  # `./check operations` builds it; a single run of pytest does not
        pytest.skip("machine: not built: compose (python -m tools.kube build compose)")
    (image,) = built_release(tmp_path_factory).glob("backendai-*-image.tar")
    with tempfile.TemporaryDirectory(prefix="compose-", ignore_cleanup_errors=True) as text, _network() as network:
        folder = Path(text)
        (folder / "docker/cli-plugins").mkdir(parents=True)
        shutil.copy(compose.place() / "docker-compose", folder / "docker/cli-plugins")
        (folder / "deploy").symlink_to(DEPLOY)
        (folder / image.name).symlink_to(image)
        # A bridge and its rules, which other engines of tests have not.
        options = ("--bridge=", "--bip=10.213.7.1/24", "--iptables=true")
        engine = DockerEngine(folder / "engine", network, options)
        process = engine.start()
        try:
            _make_stand_ins(engine, folder)
            _follow(folder, engine)
            assert engine.containers() == []
            assert docker(engine, "volume", "ls", "-q") == ""
        finally:
            end_engine(engine, process)


def _follow(folder: Path, engine: DockerEngine) -> None:
    page = PAGE.read_text()
    (line,) = re.findall(r"^    export (COMPOSE_FILE=.*)$", page, re.MULTILINE)
    environment = {
        **os.environ,
        **dict(word.split("=", 1) for word in line.split()),
        "BACKENDAI_SETTINGS": str(folder / "settings"),
        "DOCKER_HOST": engine.host,
        "DOCKER_CONFIG": str(folder / "docker"),
    }
    without_daemons = _compose({**environment, "COMPOSE_PROFILES": ""}, folder, "config", "--services")
    assert set(without_daemons.split()) == set(DATABASES)
    for example in examples(page):
        try:
            printed = run(example, cwd=folder, env=environment, timeout_s=240)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.fail(f"$ {example.command}\n{error.output}\n{_logs(environment, folder)}")
        assert matches(example.expected, printed), f"$ {example.command}\n{printed}\n{_logs(environment, folder)}"
        if example.command.startswith("docker compose up -d --wait 2"):
            _check_services(environment, folder)


def _check_services(environment: dict[str, str], folder: Path) -> None:
    """Every service of the file runs, and answers where it can be asked."""
    states = _compose(environment, folder, "ps", "--format", "{{.Service}} {{.State}} {{.Health}}").splitlines()
    assert {line.split()[0] for line in states} == set(SERVICES)
    for line in states:
        name, state, *health = line.split()
        assert (state, health) == ("running", ["healthy"] if "healthcheck" in SERVICES[name] else []), states


def _logs(environment: dict[str, str], folder: Path) -> str:
    return _compose(environment, folder, "ps", "-a") + _compose(environment, folder, "logs", "--tail", "30")


def _compose(environment: dict[str, str], folder: Path, *words: str) -> str:
    command = ["docker", "compose", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr
