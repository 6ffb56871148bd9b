"""REST routes of dotfiles and bootstrap scripts (spec 03-11, client wire contract 2.6)."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from msgspec import Meta

from ai.backend.common.errors import LimitExceeded
from ai.backend.infra.http.fields import EmptyReply, LongText, Path, Success, Word
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Schema, route
from ai.backend.manager.access.requests import OBJECT_PROBLEMS, caller_of
from ai.backend.manager.dotfiles.model import Dotfile, DotfileOwner
from ai.backend.manager.dotfiles.service import DotfileService

Permission = Annotated[str, Meta(pattern="^[4-7][0-7]{2}$", description="three octal digits that let the owner read")]


DotfilePath = Annotated[
    str, Meta(min_length=2, max_length=4_096, pattern="^\\.[^\\x00]+$", description="a path that begins with a dot")
]


class DotfileBody(Schema, frozen=True):
    """A dotfile; ``permission`` is octal. ``group`` and ``domain`` name the owner of a dotfile that is not a user's."""

    path: DotfilePath
    data: LongText
    permission: Permission
    group: Word | None = None
    domain: Word | None = None
    owner_access_key: Word | None = None


class GroupDotfileBody(DotfileBody, frozen=True, kw_only=True):
    """A dotfile of a group."""

    group: Word


class DotfileQuery(Schema, frozen=True):
    """Selects a dotfile, or all without ``path``. The published client sends ``onwer_access_key``."""

    path: Path | None = None
    group: Word | None = None
    domain: Word | None = None
    owner_access_key: Word | None = None
    onwer_access_key: Word | None = None


class GroupDotfileQuery(DotfileQuery, frozen=True, kw_only=True):
    """Selects dotfiles of a group."""

    group: Word


class OneDotfileQuery(Schema, frozen=True):
    """Names one dotfile."""

    path: Path
    group: Word | None = None
    domain: Word | None = None
    owner_access_key: Word | None = None


class OneGroupDotfileQuery(OneDotfileQuery, frozen=True, kw_only=True):
    """Names one dotfile of a group."""

    group: Word


class ScriptBody(Schema, frozen=True):
    """A bootstrap script; empty removes it."""

    script: LongText


class DotfileItem(TypedDict):
    path: str
    permission: str
    data: str


def _dotfile_view(dotfile: Dotfile) -> DotfileItem:
    return {"path": dotfile.path, "permission": dotfile.permission, "data": dotfile.data}


class SessionDefaultsApi:
    """Routes of dotfiles of users, groups and domains, and of bootstrap scripts."""

    owner_key = OwnerKey.NAMED
    problems = (*OBJECT_PROBLEMS, LimitExceeded)

    def __init__(self, defaults: DotfileService) -> None:
        self._defaults = defaults

    async def _owner(self, call: Call[Any, Any], request: Any, *, to_change: bool) -> DotfileOwner:
        caller, scope = caller_of(call), call.endpoint.path.split("/")[1]
        if scope == "user-config":
            key = request.owner_access_key or getattr(request, "onwer_access_key", None) or call.owner_access_key
            return await self._defaults.user_as_owner(caller, key)
        if scope == "group-config":
            return await self._defaults.group_as_owner(caller, request.group, request.domain, to_change=to_change)
        return await self._defaults.domain_as_owner(caller, request.domain or caller.domain_name, to_change=to_change)

    @route("POST", "/user-config/dotfiles", body=DotfileBody)
    @route("POST", "/group-config/dotfiles", body=GroupDotfileBody)
    @route("POST", "/domain-config/dotfiles", body=DotfileBody)
    async def create_dotfile(self, call: Call[DotfileBody]) -> EmptyReply:
        """Adds a dotfile to the sessions that start from now on."""
        return await self._put(call, is_new=True)

    @route("PATCH", "/user-config/dotfiles", body=DotfileBody)
    @route("PATCH", "/group-config/dotfiles", body=GroupDotfileBody)
    @route("PATCH", "/domain-config/dotfiles", body=DotfileBody)
    async def update_dotfile(self, call: Call[DotfileBody]) -> EmptyReply:
        """Replaces a dotfile; running sessions are not changed."""
        return await self._put(call, is_new=False)

    async def _put(self, call: Call[DotfileBody], *, is_new: bool) -> EmptyReply:
        body = call.body
        owner = await self._owner(call, body, to_change=True)
        await self._defaults.put(owner, body.path, body.permission, body.data, is_new=is_new)
        return {}

    @route("GET", "/user-config/dotfiles", query=DotfileQuery)
    @route("GET", "/group-config/dotfiles", query=GroupDotfileQuery)
    @route("GET", "/domain-config/dotfiles", query=DotfileQuery)
    async def dotfiles(self, call: Call[Nothing, DotfileQuery]) -> DotfileItem | list[DotfileItem]:
        """Returns one dotfile by its path, or all of them."""
        owner = await self._owner(call, call.query, to_change=False)
        if call.query.path is not None:
            return _dotfile_view(await self._defaults.get(owner, call.query.path))
        return [_dotfile_view(dotfile) for dotfile in await self._defaults.list(owner)]

    @route("DELETE", "/user-config/dotfiles", query=OneDotfileQuery)
    @route("DELETE", "/group-config/dotfiles", query=OneGroupDotfileQuery)
    @route("DELETE", "/domain-config/dotfiles", query=OneDotfileQuery)
    async def delete_dotfile(self, call: Call[Nothing, OneDotfileQuery]) -> Success:
        """Deletes a dotfile; running sessions are not changed."""
        owner = await self._owner(call, call.query, to_change=True)
        await self._defaults.delete(owner, call.query.path)
        return {"success": True}

    @route("GET", "/user-config/bootstrap-script")
    async def bootstrap_script(self, call: Call) -> str:
        """Returns the script of the caller's keypair, which sessions run that request none; empty if there is none."""
        return await self._defaults.bootstrap_script(caller_of(call), call.owner_access_key)

    @route("POST", "/user-config/bootstrap-script", body=ScriptBody, repeatable=True)
    async def set_bootstrap_script(self, call: Call[ScriptBody]) -> EmptyReply:
        """Replaces the script of the caller's keypair; an empty text removes it."""
        await self._defaults.set_bootstrap_script(caller_of(call), call.body.script, call.owner_access_key)
        return {}
