"""Files that a shell can source to use the cluster."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from ai.backend.infra.atomic_write import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    access_key: str
    secret_key: str = field(repr=False)


def write_env_file(path: Path, *, endpoint: str, keys: Keys, who: str) -> None:
    """Write the endpoint and one keypair, readable by this user alone."""
    variables = {
        "BACKEND_ENDPOINT": endpoint,
        "BACKEND_ENDPOINT_TYPE": "api",
        "BACKEND_ACCESS_KEY": keys.access_key,
        "BACKEND_SECRET_KEY": keys.secret_key,
    }
    lines = [f"# Keys of the {who} of this cluster. Use: source {shlex.quote(str(path))}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def read_env_file(path: Path) -> Keys | None:
    """Returns the keypair that an earlier ``up`` wrote; None if the file is gone or holds none."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    variables: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        if line.startswith("export ") and value:
            variables[name] = shlex.split(value)[0]
    access_key, secret_key = variables.get("BACKEND_ACCESS_KEY"), variables.get("BACKEND_SECRET_KEY")
    return Keys(access_key=access_key, secret_key=secret_key) if access_key and secret_key else None
