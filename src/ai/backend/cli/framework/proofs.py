"""Gets a proof by a password or one-time password when the server demands one, and stores it for later commands."""

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


def _proofs_path() -> Path:
    return state_file().with_name("proofs.json")


def _proof_name(config: APIConfig) -> str:
    return f"{config.access_key} {config.endpoint_urls[0]}"


def _read_proofs() -> dict[str, dict[str, Any]]:
    try:
        stored_proofs = json.loads(_proofs_path().read_text())
    except (OSError, ValueError):
        return {}
    now = time.time()
    items = stored_proofs.items() if isinstance(stored_proofs, dict) else ()
    return {
        proof_name: entry for proof_name, entry in items if isinstance(entry, dict)
        and isinstance(entry.get("until"), float | int) and entry["until"] > now and isinstance(entry.get("proof"), str)
    }  # fmt: skip


def _write_proofs(proofs: dict[str, dict[str, Any]]) -> None:
    """Writes the stored proofs to a file that only this user may read. Failures to write are ignored.

    A proof that could not be written is asked for again.
    """
    proofs_path = _proofs_path()
    with contextlib.suppress(OSError):
        proofs_path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path = proofs_path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(proofs))
        temporary_path.replace(proofs_path)


def recall_proof(config: APIConfig) -> None:
    """Adds the proof that an earlier command stored for this keypair to later requests, unless it has expired."""
    if not config.is_anonymous and config.has_credentials:
        config.proof = str(_read_proofs().get(_proof_name(config), {}).get("proof", ""))


def forget_proof(config: APIConfig) -> None:
    """Deletes the stored proof of the configured keypair."""
    config.proof = ""
    proofs = _read_proofs()
    proofs.pop(_proof_name(config), None)
    _write_proofs(proofs)


async def prove(api: AsyncSession, *, otp: str = "") -> str:
    """Asks the user for the password or a one-time password, and stores the proof that the server returns for it.

    Returns the time at which the proof expires.
    """
    import click

    password = ""
    if not otp:
        prompt_text = "Password (empty: a one-time password)"
        password = str(click.prompt(prompt_text, hide_input=True, default="", show_default=False, err=True))
    if not otp and not password:
        otp = str(click.prompt("One-time password", err=True))
    reply = await api.Auth.prove(password=password, otp=otp)
    expires_at_s = datetime.fromisoformat(reply["expires_at"]).timestamp()
    _write_proofs({**_read_proofs(), _proof_name(api.config): {"proof": reply["proof"], "until": expires_at_s}})
    return str(reply["expires_at"])


async def run_with_proof(api: AsyncSession, action: Callable[[AsyncSession], Coroutine[Any, Any, R]]) -> R:
    """Runs ``action``. If the server demands a proof, asks the user for one and runs ``action`` again.

    The user gives the password or a one-time password. Without a person to ask, the refusal is raised.

    The refused request has changed nothing. Returns the result of ``action``.
    """
    from ai.backend.client.exceptions import BackendAPIError

    try:
        return await action(api)
    except BackendAPIError as error:
        if error.code != "proof-required" or not is_somebody_there():
            raise
    await prove(api)
    return await action(api)


def is_somebody_there() -> bool:
    """True if standard input is a terminal, so that a person can answer a question."""
    return sys.stdin.isatty()
