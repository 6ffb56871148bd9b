"""Asserts that the embedded cluster loads no package that it does not use: each costs its start 10 to 200 ms."""

from __future__ import annotations

import subprocess
import sys

UNUSED = (
    "ai.backend.agent.shard",
    "ai.backend.infra.rpc.zmq",
    "ai.backend.kubeacc",
    "ai.backend.runtime.docker",
    "ai.backend.runtime.kubernetes",
    "ai.backend.web.composition",
    "aiodocker",
    "alembic",
    "asyncpg",
    "asyncssh",
    "authlib",
    "graphql",
    "grpc",
    "jinja2",
    "kubernetes",
    "ldap3",
    "opentelemetry",
    "pyroute2",
    "redis",
    "rich",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.orm",
    "unittest",
    "zmq",
)


def test_the_embedded_cluster_loads_nothing_that_it_does_not_use() -> None:
    modules = "ai.backend.standalone.cluster, ai.backend.runtime.process.runtime, ai.backend.volume.vfs"
    code = f"import sys, {modules}; print([name for name in {UNUSED!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
