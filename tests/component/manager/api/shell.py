"""Runs commands of the command line in the process of a test, against its manager."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from ai.backend.cli.main import root
from ai.backend.client import config
from tests.support.signed_http import RawClient

if TYPE_CHECKING:
    from tests.component.manager.api.conftest import Api


class Shell:
    """Runs commands with the keys of one of the clients, the administrator by default."""

    def __init__(self, api: Api, patch: pytest.MonkeyPatch) -> None:
        self._api = api
        self.patch = patch

    async def __call__(self, *arguments: str, by: RawClient | None = None, fails: str = "") -> Any:
        """Returns what `admin ...` prints as JSON; with ``fails`` its error must say that."""
        return await self.own("admin", *arguments, by=by, fails=fails)

    async def own(self, *arguments: str, by: RawClient | None = None, fails: str = "") -> Any:
        """Returns the same of any command."""
        client = by or self._api.admin
        self.patch.setenv("BACKEND_ENDPOINT", f"http://127.0.0.1:{self._api.port}")
        self.patch.setenv("BACKEND_ACCESS_KEY", client.access_key)
        self.patch.setenv("BACKEND_SECRET_KEY", client.secret_key)
        self.patch.setattr(config, "_config", None)
        command = ["--output", "json", *arguments]
        done = await asyncio.to_thread(CliRunner().invoke, root, command)
        if fails:
            assert done.exit_code != 0, done.output
            assert fails in done.output
            return None
        assert done.exit_code == 0, (arguments, done.output, done.stderr)
        return json.loads(done.stdout)

    async def noise(self, *arguments: str) -> str:
        """Returns what `admin ...` says besides its result."""
        done = await asyncio.to_thread(CliRunner().invoke, root, ["admin", *arguments])
        assert done.exit_code == 0, done.output
        return done.stderr

    async def text(self, *arguments: str, inside: tuple[str, ...] = ("admin",)) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, root, [*inside, *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout
