"""Services of a session on a local port: app, apps."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import webbrowser
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import click

from ai.backend.cli.framework.invoke import run_and_exit
from ai.backend.cli.framework.lazy import LeafCommand, ListCommand, screen_of
from ai.backend.cli.framework.output import columns
from ai.backend.cli.session.commands import owner_option

if TYPE_CHECKING:
    from ai.backend.cli.framework.output import Screen
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession

COLUMNS = columns("name | protocol | ports | allowed_arguments: Arguments | allowed_envs: Variables")


def parse_bind(text: str) -> tuple[str, int]:
    """Parses ``[HOST:]PORT``; a host of IPv6 may be in brackets. Port 0 is any free one."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not [HOST:]PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def parse_app(text: str) -> tuple[str, int | None]:
    """Parses ``APP[:PORT]``, the port being one of those that the service declares."""
    app, colon, port = text.partition(":")
    if not app or (colon and not (port.isdecimal() and 1 <= int(port) <= 65_535)):
        raise click.BadParameter(f"{text!r} is not APP or APP:PORT")
    return app, int(port) if colon else None


def parse_arguments(assignments: tuple[str, ...]) -> dict[str, str | list[str] | None]:
    """Parses ``NAME``, ``NAME=VALUE`` or ``NAME VALUE ...``, quoted as in a shell; a repeated name gets all values.

    Raises ValueError for quotes that do not end.
    """
    values_by_name: dict[str, str | list[str] | None] = {}
    for assignment in assignments:
        name, equals_sign, value = assignment.partition("=")
        if equals_sign and name.split() == [name]:
            values = [value]
        else:
            name, *values = shlex.split(assignment) or [""]
        earlier_values = values_by_name.get(name)
        values = [*([earlier_values] if isinstance(earlier_values, str) else earlier_values or []), *values]
        values_by_name[name] = values if values[1:] else values[0] if values else None
    return values_by_name


@click.command(cls=LeafCommand)
@click.argument("session")
@click.argument("app", type=parse_app)
@click.option(
    "-b",
    "--bind",
    type=parse_bind,
    metavar="[HOST:]PORT",
    default="127.0.0.1:8080",
    show_default=True,
    help="Where to listen.",
)
@click.option(
    "--arg",
    "arguments",
    multiple=True,
    metavar="NAME[=VALUE]",
    help='Start the service with this argument; "NAME VALUE VALUE", or the option again, gives it several values.',
)
@click.option("-e", "--env", "envs", multiple=True, metavar="NAME=VALUE", help="Start the service with this variable.")
@click.option("--browser", is_flag=True, help="Open the app in a browser by the app proxy, and print its address.")
@click.option("--public", is_flag=True, help="With --browser: let anybody who knows the address use the app.")
@owner_option
def app(
    session: str,
    app: tuple[str, int | None],
    bind: tuple[str, int],
    arguments: tuple[str, ...],
    envs: tuple[str, ...],
    browser: bool,
    public: bool,
    owner: str | None,
) -> None:
    """Listen on a local port that leads to the service APP of SESSION, until Ctrl-C.

    The service is started first, if it does not run yet. With --browser nothing listens here: the app proxy of the
    cluster leads to the service, at an address that can be opened once and soon.
    """
    screen = screen_of()
    name, port = app
    if public and not browser:
        raise click.UsageError("--public needs --browser")
    if malformed_env := next((env for env in envs if "=" not in env), None):
        raise click.UsageError(f"--env {malformed_env!r} is not NAME=VALUE")
    try:
        app_arguments = parse_arguments(arguments)
    except ValueError as e:
        raise click.UsageError(f"--arg cannot be read: {e}") from None

    async def forward_port(api: AsyncSession) -> int:
        compute_session = api.ComputeSession(session, owner)
        services = {str(service["name"]): service for service in await compute_session.stream_app_info()}
        if name not in services:
            screen.error(f"{session} has no service {name!r}; it has: {', '.join(services) or 'none'}")
            return 1
        variables = dict(env.split("=", 1) for env in envs)
        if browser:
            started_service = await compute_session.start_service(
                name, port=port, envs=variables, arguments=app_arguments
            )
            return await _open_browser(screen, compute_session, services[name], started_service, public=public)
        if services[name].get("protocol") not in ("preopen", "internal"):  # what the user or the image starts
            await compute_session.start_service(name, port=port, envs=variables, arguments=app_arguments)
        async with compute_session.forward_app(
            name,
            bind,
            port=port,
            envs=variables,
            arguments=app_arguments,
            report=lambda error: screen.error(str(error)),
        ) as local_port:
            address = f"{f'[{local_port.host}]' if ':' in local_port.host else local_port.host}:{local_port.port}"
            url = _service_url(services[name], local_port.host, local_port.port)
            if screen.is_json:
                screen.print_json({"app": name, "address": address, "url": url})
            screen.print_line(f"{name} of {session} is at {url or address} until you press Ctrl-C")
            await asyncio.Event().wait()
        return 0

    run_and_exit(screen, forward_port, needs_loop=True)


async def _open_browser(
    screen: Screen,
    compute_session: AsyncComputeSession,
    service: dict[str, Any],
    started_service: dict[str, Any],
    *,
    public: bool,
) -> int:
    """Prints the address of a service at the app proxy, and opens it where there is a browser."""
    name = str(service["name"])
    if not started_service.get("token") or not started_service.get("wsproxy_addr"):
        missing_reason = started_service.get("wsproxy_error") or "the resource group of the session has no app proxy"
        screen.error(
            f"{name} cannot be opened in a browser: {missing_reason}. Without --browser a local port leads to it."
        )
        return 1
    protocol = str(service.get("protocol") or "http")
    query = {"app": name, "protocol": "tcp" if protocol == "tcp" else "http", "redirect": _page_of(service)}
    if public:
        query["open_to_public"] = "true"
    session_id = await compute_session.resolve_id()
    url = f"{started_service['wsproxy_addr']}/v2/proxy/{started_service['token']}/{session_id}/add?{urlencode(query)}"
    if screen.is_json:
        screen.print_json({"app": name, "url": url})
    screen.print_line(url)
    if not screen.is_json and _can_open_browser():
        webbrowser.open(url)
    return 0


def _can_open_browser() -> bool:
    """True if a browser can be opened in a window: on macOS, or if the environment names a display or a browser.

    A browser in the terminal would take it over.
    """
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")) or sys.platform == "darwin"


def _page_of(service: dict[str, Any]) -> str:
    """Returns the path and query of the web page that a service shows first."""
    url = _service_url(service, "app", 1)
    url_parts = urlsplit(url) if url is not None else None
    if url_parts is None or not url_parts.path.startswith("/"):
        return "/"
    return url_parts.path + (f"?{url_parts.query}" if url_parts.query else "")


def _service_url(service: dict[str, Any], host: str, port: int) -> str | None:
    """Returns the URL of a service for a browser; None for a service without pages."""
    protocol = str(service.get("protocol") or "tcp")
    template = service.get("url_template")
    if not template and protocol not in ("http", "https"):
        return None
    url_host = f"[{host}]" if ":" in host else host
    url = str(template or "{protocol}://{host}:{port}/")
    for key, value in (("protocol", protocol), ("host", url_host), ("port", str(port))):
        url = url.replace("{" + key + "}", value)
    return url


@click.command(cls=ListCommand)
@click.argument("session")
@click.argument("names", nargs=-1, metavar="[APP]...")
@click.option("-l", "--list-names", is_flag=True, help="Only the names.")
@owner_option
async def apps(api: AsyncSession, session: str, names: tuple[str, ...], list_names: bool, owner: str | None) -> int:
    """List the services of SESSION, or only NAMES, with the arguments and variables that each accepts."""
    screen = screen_of()
    services = await api.ComputeSession(session, owner).stream_app_info()
    existing_names = [str(service.get("name")) for service in services]
    if missing_names := [name for name in names if name not in existing_names]:
        screen.error(f"{session} has no service {missing_names[0]!r}; it has: {', '.join(existing_names) or 'none'}")
        return 1
    services = [service for service in services if not names or service.get("name") in names]
    if list_names and not screen.is_json:
        for service in services:
            screen.print_line(str(service["name"]))
    else:
        screen.print_rows(services, COLUMNS, f"{session} has no services", describe=_service_row)
    return 0


def _service_row(service: dict[str, Any]) -> dict[str, Any]:
    list_fields = ("ports", "allowed_arguments", "allowed_envs")
    return {**service, **{field_name: ", ".join(map(str, service.get(field_name) or ())) for field_name in list_fields}}
