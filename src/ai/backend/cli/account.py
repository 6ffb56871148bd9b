"""One's own password, SSH key and configuration: `update-password`, `keypair ssh-key` and `config`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import env_file_hint
from ai.backend.cli.framework.lazy import LazyGroup, Leaf, Outcome, screen_of
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
    """Change your password. A password of - is asked for."""
    old = _ask_if_dash("Old password", old_password)
    new = _ask_if_dash("New password", new_password)
    again = new if new_password == "-" else new_password2  # a prompt has asked twice
    change(lambda api: api.Auth.update_password(old, new, again), {"updated": "password"}, "The password is changed.")


@click.command("update-password-no-auth", cls=Leaf, needs_keys=False)
@click.argument("domain")
@click.argument("email")
@click.argument("current_password")
@click.argument("new_password")
async def update_password_no_auth(
    api: AsyncSession, domain: str, email: str, current_password: str, new_password: str
) -> Outcome:
    """Change, without a keypair, a password that must be changed before sign-in. A password of - is asked for."""
    current, new = _ask_if_dash("Current password", current_password), _ask_if_dash("New password", new_password)
    await api.Auth.update_password_no_auth(domain, email, current, new)
    return {"updated": "password"}, "The password is changed."


def _ask_if_dash(title: str, value: str) -> str:
    if value != "-":  # a mark and no password
        return value
    return str(click.prompt(title, hide_input=True, confirmation_prompt=title.startswith("New"), err=True))


@click.command(cls=Leaf, needs_keys=False)
async def config(api: AsyncSession) -> None:
    """Show the configuration in force, and whether the cluster answers. Secrets are not shown."""
    from ai.backend.client.exceptions import BackendError

    screen, conf = screen_of(), api.config
    try:
        versions = await api.System.get_versions()
        server = f"manager {versions.get('manager', '?')}, API {versions.get('version', '?')}"
    except BackendError as error:
        server = f"does not answer: {error}"
    facts = {
        "endpoint": ", ".join(str(url) for url in conf.endpoints),
        "endpoint_type": conf.endpoint_type,
        "server": server,
        "api_version": conf.version,
        "access_key": conf.access_key if conf.has_credentials else f"not set: {env_file_hint()}",
        "secret_key": "is set" if conf.has_credentials else "not set",
        **{name: getattr(conf, name) for name in ("domain", "group", "hash_type")},
        "vfolder_mounts": list(conf.vfolder_mounts),
        **{name: getattr(conf, name) for name in ("skip_sslcert_validation", "connection_timeout", "read_timeout")},
    }
    if screen.is_json:
        screen.json(facts)
    else:
        screen.facts((name.replace("_", " "), value) for name, value in facts.items())


# ---- the SSH key ----


@ssh_key.command("show")
def show() -> None:
    """Show the public key that opens your sessions."""

    async def load(api: AsyncSession) -> dict[str, str]:
        return {"ssh_public_key": await api.Auth.ssh_public_key()}

    empty = "There is none; make one with `backend.ai keypair ssh-key generate`."
    print_reply(load, lambda reply: reply["ssh_public_key"] or empty)


@ssh_key.command("generate")
@click.option("-f", "--file", "path", type=_FILE, required=True, help="Where the private key is put; it is not kept.")
async def generate(api: AsyncSession, path: Path) -> Outcome:
    """Replace your SSH key. The new key opens sessions that are made from now on."""
    try:  # before there is a key that nobody has
        file_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(file_fd, "w") as file:
            key_pair = await api.Auth.generate_ssh_keypair()
            file.write(key_pair["ssh_private_key"])
    except BaseException:
        path.unlink(missing_ok=True)  # noqa: ASYNC240  # one small local file
        raise
    document = {"private_key": str(path), "ssh_public_key": key_pair["ssh_public_key"]}
    return document, f"The private key is in {path}; new sessions let you in with it."


@ssh_key.command("upload")
@click.argument("public_key", type=click.File("r"))
async def upload(api: AsyncSession, public_key: Any) -> Outcome:
    """Let the key of a file such as ~/.ssh/id_ed25519.pub open sessions that are made from now on."""
    reply = await api.Auth.upload_ssh_keypair(public_key.read(65_536))
    return {"ssh_public_key": reply}, "New sessions let you in with it."
