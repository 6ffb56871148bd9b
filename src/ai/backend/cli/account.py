"""One's own account: passwords, one-time passwords, sign-ins, SSH key and configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework import proofs
from ai.backend.cli.framework.invoke import env_file_hint
from ai.backend.cli.framework.lazy import LazyGroup, LeafCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import change, print_reply

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

totp = LazyGroup("totp", help="One-time passwords of your account.")
ssh_key = LazyGroup("ssh-key", help="The SSH key that opens your sessions.")
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("update-password", cls=LeafCommand)
@click.argument("old_password")
@click.argument("new_password")
@click.argument("new_password2")
def update_password(old_password: str, new_password: str, new_password2: str) -> None:
    """Change your password. A password of - is asked for."""
    old_text = _ask_if_dash("Old password", old_password)
    new_text = _ask_if_dash("New password", new_password)
    repeated_password = new_text if new_password == "-" else new_password2  # a prompt has asked twice
    change(
        lambda api: api.Auth.update_password(old_text, new_text, repeated_password),
        {"updated": "password"},
        "The password is changed.",
    )


@click.command("update-password-no-auth", cls=LeafCommand, needs_keys=False)
@click.argument("domain")
@click.argument("email")
@click.argument("current_password")
@click.argument("new_password")
@click.option("--otp", help="A one-time password, if you have them.")
async def update_password_no_auth(
    api: AsyncSession, domain: str, email: str, current_password: str, new_password: str, otp: str | None
) -> Outcome:
    """Change, without a keypair, a password that must be changed before sign-in. A password of - is asked for."""
    current_text, new_text = (
        _ask_if_dash("Current password", current_password),
        _ask_if_dash("New password", new_password),
    )
    await api.Auth.update_password_no_auth(domain, email, current_text, new_text, otp=otp)
    return {"updated": "password"}, "The password is changed."


def _ask_if_dash(title: str, value: str) -> str:
    if value != "-":  # a mark and no password
        return value
    return str(click.prompt(title, hide_input=True, confirmation_prompt=title.startswith("New"), err=True))


@click.command(cls=LeafCommand, needs_keys=False)
async def config(api: AsyncSession) -> None:
    """Show the configuration in force, and whether the cluster answers. Secrets are not shown."""
    from ai.backend.client.exceptions import BackendError

    screen, configuration = screen_of(), api.config
    try:
        versions = await api.System.get_versions()
        server_state = f"manager {versions.get('manager', '?')}, API {versions.get('version', '?')}"
    except BackendError as error:
        server_state = f"does not answer: {error}"
    shown_settings = {
        "endpoint": ", ".join(str(url) for url in configuration.endpoints),
        "endpoint_type": configuration.endpoint_type,
        "server": server_state,
        "api_version": configuration.version,
        "access_key": configuration.access_key if configuration.has_credentials else f"not set: {env_file_hint()}",
        "secret_key": "is set" if configuration.has_credentials else "not set",
        **{name: getattr(configuration, name) for name in ("domain", "group", "hash_type")},
        "vfolder_mounts": list(configuration.vfolder_mounts),
        **{
            name: getattr(configuration, name)
            for name in ("skip_sslcert_validation", "connection_timeout", "read_timeout")
        },
    }
    if screen.is_json:
        screen.print_json(shown_settings)
    else:
        screen.print_facts((name.replace("_", " "), value) for name, value in shown_settings.items())


# ---- signing up and in ----


@click.command("signup", cls=LeafCommand, needs_keys=False)
@click.argument("email")
@click.argument("password")
@click.option("-n", "--full-name", default="", help="Your name.")
@click.option("-d", "--domain", default="", help="The domain of the account; `default` if none.")
async def sign_up(api: AsyncSession, email: str, password: str, full_name: str, domain: str) -> Outcome:
    """Ask for a new account, if the server allows that. A token comes by e-mail. A password of - is asked for."""
    await api.Auth.sign_up(email, _ask_if_dash("New password", password), full_name=full_name, domain=domain)
    return {"signed_up": email}, f"A token is on its way to {email}: give it to `backend.ai verify-email`."


@click.command("verify-email", cls=LeafCommand, needs_keys=False)
@click.argument("token")
@click.argument("password")
async def verify_email(api: AsyncSession, token: str, password: str) -> Outcome:
    """Confirm the e-mail address of a new account by the TOKEN that was sent there. A password of - is asked for."""
    await api.Auth.verify_email(token, _ask_if_dash("Password", password))
    return {"verified": True}, "The account is active."


@click.command("sign-ins", cls=LeafCommand)
@click.option("-e", "--email", help="Another user's, for administrators.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many at most.")
def sign_ins(email: str | None, limit: int) -> None:
    """List the latest sign-ins to your account, and tries of them, newest first."""

    def describe(reply: dict[str, Any]) -> str:
        rows = [
            f"{sign_in['at']}  {sign_in['outcome']:<20}  {sign_in['method']:<10}  {sign_in['address']}"
            for sign_in in reply["items"]
        ]
        return "\n".join(rows) or "nobody has signed in"

    print_reply(lambda api: api.Auth.sign_ins(email, limit=limit), describe)


@click.command("sudo", cls=LeafCommand)
@click.option("--otp", default="", help="A one-time password or recovery code; without it, a password is asked for.")
@click.option("-k", "--forget", is_flag=True, help="Forget the proof that was given before.")
async def sudo(api: AsyncSession, otp: str, forget: bool) -> Outcome:
    """Prove your identity again, so that the server accepts grave operations from you for some minutes."""
    if forget:
        proofs.forget_proof(api.config)
        return {"expires_at": None}, "The proof is forgotten."
    expires_at = await proofs.prove(api, otp=otp)
    return {"expires_at": expires_at}, f"Grave operations are accepted until {expires_at}."


# ---- one-time passwords ----


@totp.command("status")
def totp_status() -> None:
    """Tell whether signing in takes a one-time password, and how many recovery codes are left."""

    def describe(reply: dict[str, Any]) -> str:
        if not reply["totp_activated"]:
            return "You sign in by your password alone; see `backend.ai totp enable`."
        return f"You sign in with one-time passwords; {reply['recovery_codes_left']} recovery codes are left."

    print_reply(lambda api: api.Auth.totp_status(), describe)


@totp.command("enable")
async def totp_enable(api: AsyncSession) -> Outcome:
    """Begin to sign in with one-time passwords: put the key into an authenticator app, then type the first one."""
    totp_setup = await api.Auth.begin_totp()
    click.echo(f"Key for your authenticator app: {totp_setup['totp_key']}\n{totp_setup['totp_uri']}", err=True)
    recovery_codes = await api.Auth.confirm_totp(str(click.prompt("One-time password", err=True)))
    return {"recovery_codes": recovery_codes}, _format_codes(recovery_codes)


@totp.command("recovery-codes")
@click.argument("otp")
async def totp_recovery_codes(api: AsyncSession, otp: str) -> Outcome:
    """Replace your recovery codes; OTP is a one-time password or one of them."""
    recovery_codes = await api.Auth.new_recovery_codes(otp)
    return {"recovery_codes": recovery_codes}, _format_codes(recovery_codes)


@totp.command("disable")
@click.argument("otp")
async def totp_disable(api: AsyncSession, otp: str) -> Outcome:
    """Sign in by your password alone again; OTP is a one-time password or a recovery code."""
    await api.Auth.remove_totp(otp)
    return {"totp_activated": False}, "You sign in by your password alone."


def _format_codes(recovery_codes: list[str]) -> str:
    return "\n".join(["Keep these recovery codes; each is good once:", *recovery_codes])


# ---- the SSH key ----


@ssh_key.command("show")
def show() -> None:
    """Show the public key that opens your sessions."""

    async def load(api: AsyncSession) -> dict[str, str]:
        return {"ssh_public_key": await api.Auth.ssh_public_key()}

    missing_key_text = "There is none; make one with `backend.ai keypair ssh-key generate`."
    print_reply(load, lambda reply: reply["ssh_public_key"] or missing_key_text)


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
