"""The keys of the ZeroMQ link are replaced while both ends run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.infra.rpc.zmq.agent import ZmqAgentEndpoint
from ai.backend.infra.rpc.zmq.key_files import AgentKeyFiles, ReplacedFile
from ai.backend.infra.rpc.zmq.keys import KeyPair, generate_keypair, load_keypair
from ai.backend.infra.rpc.zmq.manager import ZmqManagerEndpoint
from tests.contract.rpc.conftest import Pair, ZmqAdapter
from tests.contract.rpc.test_link import DESTROY, report


class Site:
    """A manager and an agent whose keys are in files. ``failures``: of the calls that both sides make all the time."""

    def __init__(self, adapter: ZmqAdapter, folder: Path) -> None:
        self.adapter = adapter
        self.agent_file, self.manager_file, self.public_file = (
            folder / name for name in ("agent", "manager", "public")
        )
        self.adapter.manager_keys = generate_keypair(self.manager_file)
        self.public_file.write_text(self.adapter.manager_keys.public)
        self.adapter.agent_keys.allow("i-1", generate_keypair(self.agent_file).public)
        self.pair = Pair(adapter)
        assert isinstance(self.pair.manager, ZmqManagerEndpoint)
        self.manager = self.pair.manager
        self.manager.newest_keypair = ReplacedFile(self.manager_file, load_keypair).newest
        self.agent = self.pair.also(self._agent())
        self.failures: list[str] = []

    def _agent(self) -> ZmqAgentEndpoint:
        files = AgentKeyFiles(self.agent_file, self.public_file)
        end = self.adapter.agent_with("i-1", files.keypair)
        end.newest_keys = partial(files.newest, "unused")
        return end

    async def start(self) -> None:
        await self.pair.manager.start(self.pair.reports)
        await self.agent.start(self.pair.commands)
        await self.pair.met("i-1")

    async def call(self) -> None:
        await self.agent.reports.heartbeat(report("i-1"))
        await self.pair.manager.agent("i-1").destroy_kernel(DESTROY)

    async def call_until(self, condition: Callable[[], bool]) -> int:
        """Calls in both directions until the condition holds and for a second more; returns how many calls failed."""
        failures, rounds_left = 0, 50
        async with asyncio.timeout(60):
            while rounds_left:
                try:
                    await self.call()
                except Unavailable:
                    failures += 1
                rounds_left -= condition()
                await asyncio.sleep(0.02)
        return failures


async def test_an_agent_goes_over_to_another_key_without_a_lost_call(zmq_adapter: ZmqAdapter, tmp_path: Path) -> None:
    site = Site(zmq_adapter, tmp_path)
    await site.start()
    try:
        earlier = site.agent.keypair
        newer = generate_keypair(site.agent_file)
        assert await site.call_until(lambda: site.agent.keypair == earlier) == 0, "the manager does not take it yet"
        zmq_adapter.agent_keys.allow("i-1", newer.public, keeps_earlier=True)
        assert await site.call_until(lambda: site.agent.keypair == newer) == 0
        zmq_adapter.agent_keys.allow("i-1", newer.public)
        assert await site.call_until(lambda: zmq_adapter.agent_keys.agent_for(earlier.public) is None) == 0
        assert len(site.pair.manager.agents) == 1
    finally:
        await site.pair.close()


@pytest.mark.parametrize("data", ["unix", "tls"])
async def test_agents_find_a_manager_with_another_key(data: str, tmp_path: Path) -> None:
    """Agents that have both keys find it by themselves, the others when they get the new key."""
    site = Site(ZmqAdapter(tmp_path, data), tmp_path)
    announced: list[str] = []
    site.manager.on_new_key = announced.append
    await site.start()
    try:
        newer = _next_pair(tmp_path)
        site.public_file.write_text(f"{site.agent.manager_key}\n{newer.public}\n")
        assert await site.call_until(lambda: True) == 0
        (tmp_path / "next").replace(site.manager_file)
        await site.call_until(lambda: site.agent.manager_key == newer.public)
        await site.call()
        assert announced == [newer.public]

        newest = _next_pair(tmp_path)
        (tmp_path / "next").replace(site.manager_file)
        await site.pair.met("i-1", is_there=False)
        with pytest.raises(Unavailable):
            await site.agent.reports.heartbeat(report("i-1"))
        site.public_file.write_text(newest.public)
        await site.pair.met("i-1")
        await site.pair.call_until_up(site.call)
    finally:
        await site.pair.close()


def _next_pair(folder: Path) -> KeyPair:
    return generate_keypair(folder / "next")


def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pair = generate_keypair(tmp_path / "agent")
    public = tmp_path / "public"
    with pytest.raises(InvalidInput, match="holds no key"):
        AgentKeyFiles(tmp_path / "agent", public)
    public.write_text(pair.public)
    files = AgentKeyFiles(tmp_path / "agent", public)
    for broken in ("", "too short", "ü" * 40 + " "):
        public.write_bytes(broken.encode("latin-1"))
        (tmp_path / "agent").write_text(broken)
        for _ in range(3):
            assert files.newest("unused") == (pair, (pair.public,))
    assert 2 <= len([record for record in caplog.records if "cannot be used" in record.message]) <= 6
    public.unlink()
    assert files.newest("unused")[1] == (pair.public,)
    public.write_text(f"{pair.secret}\n{pair.public}\n")
    assert files.newest("unused")[1] == (pair.secret, pair.public)
