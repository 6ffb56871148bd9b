"""`backend.ai sesstpl`, `backend.ai start-template` and `backend.ai dotfile`."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LazyGroup, LeafCommand, ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import change, list_objects
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import options
from ai.backend.cli.framework.references import resolve
from ai.backend.cli.session.options import (
    creation_config_of,
    device_options,
    env_option,
    mount_option,
    resources_option,
)

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

sesstpl = LazyGroup("sesstpl", help="Templates that sessions are made from.")
dotfile = LazyGroup("dotfile", help="Small files that are in the home directory of every new session.")
_FILE = click.option("-f", "--file", "source", type=click.File("r"), default="-", help="Standard input if not given.")
_LOG_LINES = 10
_TEMPLATE_ARGUMENT = click.argument("template_id")
_CLUSTER_OPTION = click.option(
    "--cluster",
    "kind",
    is_flag=True,
    callback=lambda _ctx, _param, value: "cluster" if value else "session",
    help="A template of clusters, which have roles.",
)


async def _template_id(api: AsyncSession, reference: str, kind: Any) -> str:
    async def load() -> list[dict[str, Any]]:
        return await api.SessionTemplate.paginated_list(everybodys=True, kind=kind)

    return await resolve(reference, load, kind="template")


@sesstpl.command("create")
@_FILE
@click.option("-g", "--group", default=None, help="Where its sessions run unless they say otherwise.")
@_CLUSTER_OPTION
async def template_create(api: AsyncSession, source: IO[str], group: str | None, kind: Any) -> Outcome:
    """Store the templates of a file in YAML or JSON."""
    template_ids = await api.SessionTemplate.create(source.read(), group=group, kind=kind)
    return {"ids": template_ids}, "\n".join(f"Template {template_id} is kept." for template_id in template_ids)


@sesstpl.command("list", cls=ListCommand)
@click.option("-a", "--all", "everybodys", is_flag=True, help="Also those of others that you may see.")
@_CLUSTER_OPTION
def template_list(**query: Any) -> None:
    """List templates."""
    template_columns = columns("id/short: ID | name | user_email: User | group_name: Group")
    list_objects(lambda api: api.SessionTemplate.paginated_list(**query), template_columns, "there are no templates")


@sesstpl.command("get")
@_TEMPLATE_ARGUMENT
@click.option("-f", "--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@_CLUSTER_OPTION
async def template_get(api: AsyncSession, template_id: str, form: Any, kind: Any) -> Outcome:
    """Print a template."""
    full_id = await _template_id(api, template_id, kind)
    template_text = await api.SessionTemplate.get(full_id, form=form, kind=kind)
    return {"id": full_id, "text": template_text}, template_text.rstrip("\n")


@sesstpl.command("update")
@_TEMPLATE_ARGUMENT
@_FILE
@_CLUSTER_OPTION
async def template_update(api: AsyncSession, template_id: str, source: IO[str], kind: Any) -> Outcome:
    """Replace the text of a template."""
    full_id = await _template_id(api, template_id, kind)
    await api.SessionTemplate.update(full_id, source.read(), kind=kind)
    return {"id": full_id}, f"Template {template_id} is changed."


@sesstpl.command("delete")
@_TEMPLATE_ARGUMENT
@_CLUSTER_OPTION
async def template_delete(api: AsyncSession, template_id: str, kind: Any) -> Outcome:
    """Forget a template; its sessions stay."""
    full_id = await _template_id(api, template_id, kind)
    await api.SessionTemplate.delete(full_id, kind=kind)
    return {"id": full_id}, f"Template {template_id} is removed."


@click.command("start-template", cls=LeafCommand)
@_TEMPLATE_ARGUMENT
@click.option("-t", "--name", default=None, help="Name of the session.")
@click.option("--enqueue-only", is_flag=True, help="Do not wait until it runs.")
@options(resources_option, env_option, mount_option, *device_options)
@_CLUSTER_OPTION
async def start_template(
    api: AsyncSession, template_id: str, name: str | None, enqueue_only: bool, kind: Any, **overrides: Any
) -> Outcome:
    """Start a session from a template; -r, -e, -m, --variant, --device-request and --claim replace its resources,
    variables, mounts, variants, device requests and claim. An empty --variant, --device-request or --claim is none.
    """
    session_fields: dict[str, Any] = {"enqueueOnly": enqueue_only, **({"name": name} if name else {})}
    if creation_config := creation_config_of(overrides):
        session_fields["config"] = creation_config
    reply = await api.SessionTemplate.start(await _template_id(api, template_id, kind), kind=kind, **session_fields)
    name, status = str(reply.get("sessId", reply.get("sessionId"))), reply.get("status")
    if status == "RUNNING":
        await _print_bootstrap_log(api, name)
    return reply, f"Session {name} is {status}."


async def _print_bootstrap_log(api: AsyncSession, session: str) -> None:
    """Prints the last log lines of a new session, which name a Git repository that could not be cloned."""
    lines = (await api.ComputeSession(session).get_logs()).splitlines()
    for line in lines[-_LOG_LINES:]:
        screen_of().inform(f"  {line}")


# ---- dotfiles ----

_PATH_ARGUMENT = click.argument("path")
_owner_options = options(
    click.option("-g", "--group", default=None, help="Of a group, for its administrators."),
    click.option("-d", "--domain", default=None, help="Of a domain, for its administrators."),
)


@dotfile.command("create")
@_PATH_ARGUMENT
@_FILE
@click.option("--perm", default="755", show_default=True, help="Permission in octal digits.")
@_owner_options
def dotfile_create(path: str, source: IO[str], perm: str, **owner: Any) -> None:
    """Store a dotfile for sessions that start from now on."""
    dotfile_text = source.read()
    change(lambda api: api.Dotfile.create(path, dotfile_text, perm, **owner), {"path": path}, f"{path} is kept.")


@dotfile.command("update")
@_PATH_ARGUMENT
@_FILE
@click.option("--perm", default=None, help="Permission in octal digits.  [default: as before]")
@_owner_options
def dotfile_update(path: str, source: IO[str], perm: str | None, **owner: Any) -> None:
    """Replace a dotfile; running sessions keep the old text."""
    dotfile_text = source.read()
    change(lambda api: api.Dotfile.update(path, dotfile_text, perm, **owner), {"path": path}, f"{path} is changed.")


@dotfile.command("get")
@_PATH_ARGUMENT
@_owner_options
async def dotfile_get(api: AsyncSession, path: str, **owner: Any) -> Outcome:
    """Print a dotfile."""
    reply = await api.Dotfile.get(path, **owner)
    return reply, reply["data"].rstrip("\n")


@dotfile.command("list", cls=ListCommand)
@_owner_options
def dotfile_list(**owner: Any) -> None:
    """List dotfiles."""
    list_objects(lambda api: api.Dotfile.paginated_list(**owner), columns("path | permission"), "there are no dotfiles")


@dotfile.command("delete")
@_PATH_ARGUMENT
@_owner_options
def dotfile_delete(path: str, **owner: Any) -> None:
    """Delete a dotfile; running sessions keep it."""
    change(lambda api: api.Dotfile.delete(path, **owner), {"path": path}, f"{path} is gone.")
