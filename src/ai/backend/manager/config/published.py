"""Tables of the published ``manager.toml`` (spec 03-02), translated to the manager's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr

from ai.backend.infra.settings import Settings
from ai.backend.infra.settings.published import accept_only, fixed_field, unused_field
from ai.backend.infra.settings.tables import Address, TlsSettings


class ManagerProcessSettings(TlsSettings):
    """The table ``[manager]``: the process, its TLS keys and the lease of its loops."""

    lease_s: float = Field(
        4.0,
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
    user: str | int | None = Field(None, description="As root: the user, by name or number, that the daemon becomes.")
    group: str | int | None = Field(None, description="As root: its group; the user's if unset.")
    hide_agents: bool = unused_field(False, "only administrators see on which agents sessions are, always")
    disabled_plugins: Annotated[
        list[str],
        accept_only([], because="a plug-in is used only where hooks or a resource group names it"),
    ] = fixed_field(list, "a plug-in is used where hooks or a resource group names it")
    distributed_lock: Literal["", "filelock", "pg_advisory", "redlock", "etcd", "etcetra"] = unused_field(
        "", "the lease of the leader is in the database"
    )
    event_loop: Literal["asyncio", "uvloop"] = unused_field("asyncio", "managers run on asyncio's own loop")
    importer_image: str = unused_field("", "images are imported by their manifests, without a session")
    secret: SecretStr = unused_field(
        SecretStr(""), "nothing is signed with it; secrets.key-file has the manager's keys"
    )
    use_sokovan: Annotated[bool, accept_only(True, because="there is one scheduler: leave it out, or true")] = (
        fixed_field(True, "there is one scheduler", alias="use_sokovan")
    )


class DockerRegistrySettings(Settings):
    """The table ``[docker-registry]``: whether certificates of container registries are verified."""

    ssl_verify: bool = Field(
        True, description="Whether certificates of registries are verified that have no ssl_verify of their own."
    )
    enabled: bool = unused_field(True, "registries are those below config/docker/registry")


def translate_published(data: Any) -> Any:
    """Returns the data of ``manager.toml``, with the values of published keys also under the manager's own keys."""
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
        target_table = settings.setdefault(table, {})
        if value is not None and isinstance(target_table, dict):
            target_table[key] = value
    return {key: value for key, value in settings.items() if value != {} or key in data}
