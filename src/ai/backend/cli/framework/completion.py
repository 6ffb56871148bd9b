"""Completes the names of sessions, images, folders, slots, users and agents in a shell, by a request to the manager.

The request is made by the standard library, since importing the HTTP library of the other commands takes too long for a
key press.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType

_TIMEOUT_S = 2.0
_PAGE = "limit: 100, offset: 0"
Names = Iterable[tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class NameSource:
    """The request for the names of one kind of objects: a GraphQL query, or the path of a GET.

    ``names`` returns pairs of a name and its explanation from the reply.
    """

    request: str
    names: Callable[[Any], Names]


def _image_names(reply: Any) -> Names:
    for image in reply["data"]["images"]:
        full_name = f"{image['registry'] + '/' if image['registry'] else ''}{image['name']}:{image['tag']}"
        yield from ((alias, full_name) for alias in image["aliases"] or ())
        yield full_name, image["architecture"]


def _item_reader(root_field: str, name_field: str, explanation_field: str) -> Callable[[Any], Names]:
    return lambda reply: [(item[name_field], item[explanation_field]) for item in reply["data"][root_field]["items"]]


SOURCES: Mapping[str, NameSource] = {
    "session": NameSource(
        f'{{ compute_session_list({_PAGE}, status: "PENDING,PREPARING,RUNNING,ERROR") {{ items {{ name status }} }} }}',
        _item_reader("compute_session_list", "name", "status"),
    ),
    "image": NameSource("{ images { registry name tag architecture aliases } }", _image_names),
    "folder": NameSource("/folders", lambda reply: [(folder["name"], folder["host"]) for folder in reply]),
    "slot": NameSource("/config/resource-slots", lambda reply: [(f"{slot}=", type_) for slot, type_ in reply.items()]),
    "user": NameSource(
        f"{{ user_list({_PAGE}) {{ items {{ email role }} }} }}", _item_reader("user_list", "email", "role")
    ),
    "agent": NameSource(
        f"{{ agent_list({_PAGE}) {{ items {{ id status }} }} }}", _item_reader("agent_list", "id", "status")
    ),
}
KINDS_BY_ARGUMENT: Mapping[str, str] = {
    "session": "session", "sessions": "session", "image": "image", "agent_id": "agent", "agent_ids": "agent",
    "agent": "agent", "email": "user", "emails": "user", "user_email": "user", "users": "user",
}  # fmt: skip
"""Name of an argument of any command -> kind of objects that it names."""
KINDS_BY_OPTION: Mapping[str, str] = {"mounts": "folder", "resources": "slot", "dependencies": "session"}


class CompletedType(_ParamType):
    """A type of parameters that offers names of objects when a shell completes it."""

    def __init__(self, kind: str, inner: _ParamType = click.STRING) -> None:
        self.name = inner.name
        self.kind = kind
        self._inner = inner

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._inner.convert(value, param, ctx)

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(str(name), help=str(explanation))
            for name, explanation in load_names(self.kind)
            if str(name).startswith(incomplete) and str(name).isprintable()
        ]


def complete_names(params: Iterable[click.Parameter]) -> None:
    """Lets the shell complete parameters, such as SESSION, whose names stand for objects of the cluster."""
    for param in params:
        kinds_by_name = KINDS_BY_ARGUMENT if isinstance(param, click.Argument) else KINDS_BY_OPTION
        kind = kinds_by_name.get(param.name or "")
        if kind is not None and not isinstance(param.type, CompletedType):
            param.type = CompletedType(kind, param.type)


def load_names(kind: str) -> list[tuple[Any, Any]]:
    """Returns the names of objects and their explanations; none if the cluster does not answer soon."""
    from ai.backend.client.exceptions import BackendError

    source = SOURCES[kind]
    try:
        return list(source.names(_fetch_reply(source.request)))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, BackendError):
        return []  # a completion has no place for errors


def _fetch_reply(request: str) -> Any:
    import json
    import ssl
    from urllib.request import Request, urlopen

    from ai.backend.client.config import get_config
    from ai.backend.client.wire import Call, prepare_request

    api_call = Call(method="GET", path=request)
    if not request.startswith("/"):
        api_call = Call(method="POST", path="/admin/gql", json={"query": request, "variables": {}})
    config = get_config()
    url, headers, body = prepare_request(config, api_call)
    tls_context = ssl.create_default_context()
    if config.skip_sslcert_validation:
        tls_context.check_hostname, tls_context.verify_mode = False, ssl.CERT_NONE
    http_request = Request(str(url), data=body, headers=dict(headers), method=api_call.method)  # http and https only
    with urlopen(http_request, timeout=_TIMEOUT_S, context=tls_context) as reply:  # the configured endpoint
        return json.load(reply)
