"""`backend.ai sesstpl`, `backend.ai dotfile` and `backend.ai start-template`."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand
from ai.backend.cli.framework.objects import change, list_them
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.references import resolve
from ai.backend.cli.framework.values import short_id

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

sesstpl = LazyGroup("sesstpl", help="Templates that sessions are made from.")
_TEXT = click.option("-f", "--file", "source", type=click.File("r"), default="-", help="Standard input if not given.")
_TEMPLATE = click.argument("template_id")
_PATH = click.argument("path")
_CLUSTER = click.option("--cluster", "is_cluster", is_flag=True, help="A template of clusters, which have roles.")
_PERMISSION = click.option("--perm", default="644", show_default=True, help="Permission in octal digits.")


async def _template_id(api: AsyncSession, reference: str, is_cluster: bool) -> str:
    async def load() -> Any:
        return await api.SessionTemplate.paginated_list(everybodys=True, kind=_kind(is_cluster))

    return await resolve(reference, load, kind="template")


def _kind(is_cluster: bool) -> Any:
    return "cluster" if is_cluster else "session"


@sesstpl.command("create", cls=Leaf)
@_TEXT
@click.option("-g", "--group", default=None, help="Where its sessions run unless they say otherwise.")
@_CLUSTER
def template_create(source: IO[str], group: str | None, is_cluster: bool) -> None:
    """Keep the templates of a file in YAML or JSON."""
    payload = source.read()

    async def work(api: AsyncSession) -> dict[str, Any]:
        return {"ids": await api.SessionTemplate.create(payload, group=group, kind=_kind(is_cluster))}

    change(work, {}, "", lines=lambda made: "\n".join(f"Template {one} is kept." for one in made["ids"]))


@sesstpl.command("list", cls=ListCommand)
@click.option("-a", "--all", "everybodys", is_flag=True, help="Also those of others that you may see.")
@_CLUSTER
def template_list(everybodys: bool, is_cluster: bool) -> None:
    """List templates."""
    columns = (
        Column("id", "ID", short_id),
        Column("name", "Name"),
        Column("user_email", "User"),
        Column("group_name", "Group"),
    )
    list_them(
        lambda api: api.SessionTemplate.paginated_list(everybodys=everybodys, kind=_kind(is_cluster)),
        columns,
        "there are no templates",
    )


@sesstpl.command("get", cls=Leaf)
@_TEMPLATE
@click.option("-f", "--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@_CLUSTER
def template_get(template_id: str, form: Any, is_cluster: bool) -> None:
    """Print a template."""

    async def work(api: AsyncSession) -> dict[str, Any]:
        full_id = await _template_id(api, template_id, is_cluster)
        text = await api.SessionTemplate.get(full_id, form=form, kind=_kind(is_cluster))
        return {"id": full_id, "text": text}

    change(work, {}, "", lines=lambda made: made["text"].rstrip("\n"))


@sesstpl.command("update", cls=Leaf)
@_TEMPLATE
@_TEXT
@_CLUSTER
def template_update(template_id: str, source: IO[str], is_cluster: bool) -> None:
    """Replace what a template says."""
    payload = source.read()

    async def work(api: AsyncSession) -> dict[str, Any]:
        full_id = await _template_id(api, template_id, is_cluster)
        await api.SessionTemplate.update(full_id, payload, kind=_kind(is_cluster))
        return {"id": full_id}

    change(work, {}, f"Template {template_id} is changed.")


@sesstpl.command("delete", cls=Leaf)
@_TEMPLATE
@_CLUSTER
def template_delete(template_id: str, is_cluster: bool) -> None:
    """Forget a template; its sessions stay."""

    async def work(api: AsyncSession) -> dict[str, Any]:
        full_id = await _template_id(api, template_id, is_cluster)
        await api.SessionTemplate.delete(full_id, kind=_kind(is_cluster))
        return {"id": full_id}

    change(work, {}, f"Template {template_id} is removed.")


@click.command("start-template", cls=Leaf)
@_TEMPLATE
@click.option("-t", "--name", default=None, help="Name of the session.")
@click.option("--enqueue-only", is_flag=True, help="Do not wait until it runs.")
@_CLUSTER
def start_template(template_id: str, name: str | None, enqueue_only: bool, is_cluster: bool) -> None:
    """Start a session as a template says."""
    fields: dict[str, Any] = {"enqueueOnly": enqueue_only, **({"name": name} if name else {})}

    async def work(api: AsyncSession) -> Any:
        full_id = await _template_id(api, template_id, is_cluster)
        return await api.SessionTemplate.start(full_id, kind=_kind(is_cluster), **fields)

    change(
        work, {}, "", lines=lambda made: f"Session {made.get('sessId', made.get('sessionId'))} is {made.get('status')}."
    )


# ---- dotfiles ----
