"""`backend.ai sesstpl`, `backend.ai dotfile` and `backend.ai start-template`."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import click

from ai.backend.cli.calling import call
from ai.backend.cli.lazy import LazyGroup, Leaf, screen_of
from ai.backend.cli.vfolder_group import show, tell

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

sesstpl = LazyGroup("sesstpl", help="Templates that sessions are made from.")
dotfile = LazyGroup("dotfile", help="Small files that are in the home directory of every new session.")
_TEXT = click.option("-f", "--file", "source", type=click.File("r"), default="-", help="Standard input if not given.")
_CLUSTER = click.option("--cluster", "is_cluster", is_flag=True, help="A template of clusters, which have roles.")
_GROUP = click.option("-g", "--group", default=None, help="Of a group, for its administrators.")
_DOMAIN = click.option("-d", "--domain", default=None, help="Of a domain, for its administrators.")
_PERMISSION = click.option("--perm", default="644", show_default=True, help="Permission in octal digits.")


def _kind(is_cluster: bool) -> Any:
    return "cluster" if is_cluster else "session"


@sesstpl.command("create", cls=Leaf)
@_TEXT
@click.option("-g", "--group", default=None, help="Where its sessions run unless they say otherwise.")
@_CLUSTER
def template_create(source: IO[str], group: str | None, is_cluster: bool) -> None:
    """Keep the templates of a file in YAML or JSON."""
    screen, payload = screen_of(), source.read()

    async def work(api: AsyncSession) -> None:
        made = await api.SessionTemplate.create(payload, group=group, kind=_kind(is_cluster))
        tell(screen, {"ids": made}, "\n".join(f"Template {one} is kept." for one in made))

    call(screen, work)


@sesstpl.command("list", cls=Leaf)
@click.option("-a", "--all", "everybodys", is_flag=True, help="Also those of others that you may see.")
@_CLUSTER
def template_list(everybodys: bool, is_cluster: bool) -> None:
    """List templates."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.SessionTemplate.paginated_list(everybodys=everybodys, kind=_kind(is_cluster))
        columns = (("id", "ID"), ("name", "Name"), ("user_email", "User"), ("group_name", "Group"))
        show(screen, found, columns, "There are no templates.")

    call(screen, work)


@sesstpl.command("get", cls=Leaf)
@click.argument("template_id")
@click.option("-f", "--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@_CLUSTER
def template_get(template_id: str, form: Any, is_cluster: bool) -> None:
    """Print a template."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        text = await api.SessionTemplate.get(template_id, form=form, kind=_kind(is_cluster))
        tell(screen, {"id": template_id, "text": text}, text.rstrip("\n"))

    call(screen, work)


@sesstpl.command("update", cls=Leaf)
@click.argument("template_id")
@_TEXT
@_CLUSTER
def template_update(template_id: str, source: IO[str], is_cluster: bool) -> None:
    """Replace what a template says."""
    screen, payload = screen_of(), source.read()

    async def work(api: AsyncSession) -> None:
        await api.SessionTemplate.update(template_id, payload, kind=_kind(is_cluster))
        tell(screen, {"id": template_id}, f"Template {template_id} is changed.")

    call(screen, work)


@sesstpl.command("delete", cls=Leaf)
@click.argument("template_id")
@_CLUSTER
def template_delete(template_id: str, is_cluster: bool) -> None:
    """Forget a template; its sessions stay."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.SessionTemplate.delete(template_id, kind=_kind(is_cluster))
        tell(screen, {"id": template_id}, f"Template {template_id} is gone.")

    call(screen, work)


@click.command("start-template", cls=Leaf)
@click.argument("template_id")
@click.option("-t", "--name", default=None, help="Name of the session.")
@click.option("--enqueue-only", is_flag=True, help="Do not wait until it runs.")
@_CLUSTER
def start_template(template_id: str, name: str | None, enqueue_only: bool, is_cluster: bool) -> None:
    """Start a session as a template says."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        fields: dict[str, Any] = {"enqueueOnly": enqueue_only, **({"name": name} if name else {})}
        made = await api.SessionTemplate.start(template_id, kind=_kind(is_cluster), **fields)
        tell(screen, made, f"Session {made.get('sessId', made.get('sessionId'))} is {made.get('status')}.")

    call(screen, work)


@dotfile.command("create", cls=Leaf)
@click.argument("path")
@_TEXT
@_PERMISSION
@_GROUP
@_DOMAIN
def dotfile_create(path: str, source: IO[str], perm: str, group: str | None, domain: str | None) -> None:
    """Keep a dotfile; it is in sessions that start from now on."""
    screen, data = screen_of(), source.read()

    async def work(api: AsyncSession) -> None:
        await api.Dotfile.create(path, data, perm, group=group, domain=domain)
        tell(screen, {"path": path}, f"{path} is kept.")

    call(screen, work)


@dotfile.command("update", cls=Leaf)
@click.argument("path")
@_TEXT
@_PERMISSION
@_GROUP
@_DOMAIN
def dotfile_update(path: str, source: IO[str], perm: str, group: str | None, domain: str | None) -> None:
    """Replace a dotfile; sessions that run keep theirs."""
    screen, data = screen_of(), source.read()

    async def work(api: AsyncSession) -> None:
        await api.Dotfile.update(path, data, perm, group=group, domain=domain)
        tell(screen, {"path": path}, f"{path} is changed.")

    call(screen, work)


@dotfile.command("get", cls=Leaf)
@click.argument("path")
@_GROUP
@_DOMAIN
def dotfile_get(path: str, group: str | None, domain: str | None) -> None:
    """Print a dotfile."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.Dotfile.get(path, group=group, domain=domain)
        tell(screen, found, found["data"].rstrip("\n"))

    call(screen, work)


@dotfile.command("list", cls=Leaf)
@_GROUP
@_DOMAIN
def dotfile_list(group: str | None, domain: str | None) -> None:
    """List dotfiles."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.Dotfile.paginated_list(group=group, domain=domain)
        show(screen, found, (("path", "Path"), ("permission", "Permission")), "There are no dotfiles.")

    call(screen, work)


@dotfile.command("delete", cls=Leaf)
@click.argument("path")
@_GROUP
@_DOMAIN
def dotfile_delete(path: str, group: str | None, domain: str | None) -> None:
    """Forget a dotfile; sessions that run keep theirs."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.Dotfile.delete(path, group=group, domain=domain)
        tell(screen, {"path": path}, f"{path} is gone.")

    call(screen, work)
