"""Asks again who is there where the platform demands a recent proof, and remembers it for the next commands."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ai.backend.cli.framework.announcements import state_file

if TYPE_CHECKING:
    from ai.backend.client.config import APIConfig
    from ai.backend.client.session import AsyncSession

R = TypeVar("R")


def _path() -> Path:
    return state_file().with_name("proofs.json")


def _name_of(config: APIConfig) -> str:
    return f"{config.access_key} {config.endpoint_urls[0]}"


def _read() -> dict[str, dict[str, Any]]:
    try:
        stored = json.loads(_path().read_text())
    except (OSError, ValueError):
        return {}
    now = time.time()
    items = stored.items() if isinstance(stored, dict) else ()
    return {
        name: item for name, item in items if isinstance(item, dict) and isinstance(item.get("until"), float | int)
        and item["until"] > now and isinstance(item.get("proof"), str)
    }  # fmt: skip


def _write(proofs: dict[str, dict[str, Any]]) -> None:
    """Writes the proofs to a file that nobody else reads; one that cannot be written is asked for again."""
    path = _path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(proofs))
        part.replace(path)


def recall(config: APIConfig) -> None:
    """Lets requests carry the proof of an earlier command, if it is still good."""
    if not config.is_anonymous and config.has_credentials:
        config.proof = str(_read().get(_name_of(config), {}).get("proof", ""))


def forget(config: APIConfig) -> None:
    """Forgets the proof of this keypair."""
    config.proof = ""
    proofs = _read()
    proofs.pop(_name_of(config), None)
    _write(proofs)


async def prove(api: AsyncSession, *, otp: str = "") -> str:
    """Asks for a password, or an empty one and a one-time password; returns until when the proof is good."""
    import click

    password = ""
    if not otp:
        text = "Password (empty: a one-time password)"
        password = str(click.prompt(text, hide_input=True, default="", show_default=False, err=True))
    if not otp and not password:
        otp = str(click.prompt("One-time password", err=True))
    reply = await api.Auth.prove(password=password, otp=otp)
    until = datetime.fromisoformat(reply["expires_at"]).timestamp()
    _write({**_read(), _name_of(api.config): {"proof": reply["proof"], "until": until}})
    return str(reply["expires_at"])


async def with_proof(api: AsyncSession, work: Callable[[AsyncSession], Coroutine[Any, Any, R]]) -> R:
    """Returns the result of ``work``. Where it is refused for the lack of a proof and somebody is there to ask, it asks
    for one and does it again; nothing has been done by what was refused."""
    from ai.backend.client.exceptions import BackendAPIError

    try:
        return await work(api)
    except BackendAPIError as error:
        if error.code != "proof-required" or not is_somebody_there():
            raise
    await prove(api)
    return await work(api)


def is_somebody_there() -> bool:
    """Returns whether a person can be asked."""
    return sys.stdin.isatty()
