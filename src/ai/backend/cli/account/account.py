"""One's own password and SSH key: `backend.ai update-password` and `backend.ai keypair ssh-key`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import LazyGroup, Leaf, screen_of
from ai.backend.cli.framework.objects import change, print_reply

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

ssh_key = LazyGroup("ssh-key", help="The SSH key that opens your sessions.")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("update-password", cls=Leaf)
@click.argument("old_password")
@click.argument("new_password")
@click.argument("new_password2")
def update_password(old_password: str, new_password: str, new_password2: str) -> None:
    """Change your password; a - is asked for."""
    old = _asked("Old password", old_password)
    new = _asked("New password", new_password)
    again = new if new_password == "-" else new_password2  # a prompt has asked twice
    change(lambda api: api.Auth.update_password(old, new, again), {"updated": "password"}, "The password is changed.")


@click.command("update-password-no-auth", cls=Leaf)
@click.argument("domain")
@click.argument("email")
@click.argument("current_password")
@click.argument("new_password")
def update_password_no_auth(domain: str, email: str, current_password: str, new_password: str) -> None:
    """Change a password that must be changed before its user signs in; a - is asked for. It needs no keypair."""
    screen = screen_of()
    current, new = _asked("Current password", current_password), _asked("New password", new_password)

    async def work(api: AsyncSession) -> None:
        await api.Auth.update_password_no_auth(domain, email, current, new)
        if screen.is_json:
            screen.json({"updated": "password"})
        screen.say("The password is changed.")

    call(screen, work, needs_keys=False)


def _asked(what: str, value: str) -> str:
    if value != "-":  # a mark and no password
        return value
    return str(click.prompt(what, hide_input=True, confirmation_prompt=what.startswith("New"), err=True))


# ---- the SSH key ----


@ssh_key.command("show", cls=Leaf)
def show() -> None:
    """Show the public key that opens your sessions."""

    async def load(api: AsyncSession) -> dict[str, str]:
        return {"ssh_public_key": await api.Auth.ssh_public_key()}

    empty = "There is none; make one with `backend.ai keypair ssh-key generate`."
    print_reply(load, lambda reply: reply["ssh_public_key"] or empty)


@ssh_key.command("generate", cls=Leaf)
@click.option("-f", "--file", "path", type=_FILE, required=True, help="Where the private key is put; it is not kept.")
def generate(path: Path) -> None:
    """Make a key in the place of the old one. It opens sessions that are made from now on."""

    async def work(api: AsyncSession) -> dict[str, Any]:
        try:  # before there is a key that nobody has
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
        try:
            with os.fdopen(descriptor, "w") as file:
                made = await api.Auth.generate_ssh_keypair()
                file.write(made["ssh_private_key"])
        except BaseException:
            _discard(path)
            raise
        return {"ssh_public_key": made["ssh_public_key"]}

    change(work, {"private_key": str(path)}, f"The private key is in {path}; new sessions let you in with it.")


def _discard(path: Path) -> None:
    path.unlink(missing_ok=True)


@ssh_key.command("upload", cls=Leaf)
@click.argument("public_key", type=click.File("r"))
def upload(public_key: Any) -> None:
    """Let the key of a file such as ~/.ssh/id_ed25519.pub open sessions that are made from now on."""
    text = public_key.read(65_536)

    async def work(api: AsyncSession) -> dict[str, Any]:
        return {"ssh_public_key": await api.Auth.upload_ssh_keypair(text)}

    change(work, {}, "New sessions let you in with it.")
