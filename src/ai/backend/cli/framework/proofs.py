"""Asks for a password where the server demands a recent proof of who asks, and keeps the proof for later commands."""

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
    """Writes the proofs to a file that nobody else reads; one that cannot be written is asked for again."""
    proofs_path = _proofs_path()
    with contextlib.suppress(OSError):
        proofs_path.parent.mkdir(parents=True, exist_ok=True)
        temporary_path = proofs_path.with_suffix(f".{os.getpid()}")
        descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(json.dumps(proofs))
        temporary_path.replace(proofs_path)


def recall_proof(config: APIConfig) -> None:
    """Lets requests carry the proof of an earlier command, if it is still good."""
    if not config.is_anonymous and config.has_credentials:
        config.proof = str(_read_proofs().get(_proof_name(config), {}).get("proof", ""))


def forget_proof(config: APIConfig) -> None:
    """Forgets the proof of this keypair."""
    config.proof = ""
    proofs = _read_proofs()
    proofs.pop(_proof_name(config), None)
    _write_proofs(proofs)


async def prove(api: AsyncSession, *, otp: str = "") -> str:
    """Asks for a password, or an empty one and a one-time password; returns until when the proof is good."""
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
    """Runs ``action``, and runs it again with a new proof if the server demands one and somebody is there to ask.

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
    """Returns whether a person can be asked."""
    return sys.stdin.isatty()
