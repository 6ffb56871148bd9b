"""Tables of the published ``manager.toml`` (spec 03-02), translated to the manager's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import Field, SecretStr

from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.tables import Address, TlsSettings


class DbSettings(Settings):
    """The table ``[db]``: the parts of a PostgreSQL URL; ``database.url`` overrides them."""

    type: Literal["postgresql"] = Field("postgresql", description="The kind of database.")
    addr: Address = Field(description="{host, port}, or host:port.")
    name: str = Field("backend", description="Name of the database.")
    user: str = Field("postgres", description="Who asks.")
    password: SecretStr = Field(SecretStr(""), description="Its password.")
    pool_size: int = Field(8, ge=1, le=1000, description="Connections kept, at most.")
    max_overflow: int | None = Field(None, description="Read and not used.")
    pool_recycle: float = Field(-1, description="Read and not used.")
    pool_pre_ping: bool = Field(False, description="Read and not used: a lost connection is replaced anyway.")
    lock_conn_timeout: float | None = Field(None, description="Read and not used.")

    @property
    def url(self) -> str:
        secret = self.password.get_secret_value()
        account = quote(self.user, safe="") + (f":{quote(secret, safe='')}" if secret else "")
        return f"postgresql://{account}@{self.addr.host}:{self.addr.port}/{quote(self.name, safe='')}"


class ManagerProcessSettings(TlsSettings):
    """The table ``[manager]``."""

    lease_s: float = Field(
        10.0,
        ge=1,
        description="How long, in seconds, a leader that vanished leaves the loops undone, where managers share a "
        "database.",
    )
    pid_file: Path | None = Field(None, description="Where the process id is written.")
    service_addr: Address | None = Field(None, description="As the table listen, which it wins over.")
    heartbeat_timeout: float | None = Field(None, gt=0, description="As agents.heartbeat-timeout-s; wins over it.")
    rpc_auth_manager_keypair: Path | None = Field(None, description="As agent-link.key-file; wins over it.")
    num_proc: int = Field(
        1,
        ge=1,
        le=256,
        description="Processes that serve requests at the same address, where the database is PostgreSQL; the first one"
        " looks after the others. For agents the n-th further one has the n-th port after those of agent-link.",
    )
    hide_agents: bool = Field(False, description="Read and not used.")
    disabled_plugins: list[str] = Field(default_factory=list, description="Read and not used.")
    distributed_lock: str = Field("", description="Read and not used: the lease is in the database.")
    event_loop: Literal["asyncio", "uvloop"] = Field("asyncio", description="Read and not used: asyncio.")
    importer_image: str = Field("", description="Read and not used.")
    secret: SecretStr = Field(SecretStr(""), description="Read and not used.")
    use_sokovan: bool = Field(True, alias="use_sokovan", description="Read and not used: there is one scheduler.")
    user: str | int | None = Field(None, description="Read and not used: start the daemon as that user.")
    group: str | int | None = Field(None, description="As user.")


def translated(data: Any) -> Any:
    """Returns the settings of the file with published keys translated."""
    if not isinstance(data, dict):
        return data
    settings = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    manager = settings.get("manager")
    if not isinstance(manager, dict):
        return settings
    values = {
        ("agents", "heartbeat-timeout-s"): manager.get("heartbeat-timeout"),
        ("agent-link", "key-file"): manager.get("rpc-auth-manager-keypair"),
    }
    address = manager.get("service-addr")
    if isinstance(address, str) and ":" in address:
        host, _, port = address.rpartition(":")
        address = {"host": host, "port": port}
    if isinstance(address, dict):
        values |= {("listen", key): address.get(key) for key in ("host", "port")}
    for (table, key), value in values.items():
        target = settings.setdefault(table, {})
        if value is not None and isinstance(target, dict):
            target[key] = value
    return {key: value for key, value in settings.items() if value != {} or key in data}
