"""Sessions that say something to accelerator plugins, from the request to the agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import AgentReport
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.sessions.model import CreateSession
from tests.component.manager.conftest import SETTINGS, Cluster, start_manager
from tests.component.manager.test_variants import GpuAgent, waits_for

SCHEMA = {"type": "object", "properties": {"threads": {"type": "integer", "maximum": 8}}, "additionalProperties": False}


@dataclass
class OptionedAgent(GpuAgent):
    """A GPU agent whose plugin takes the options of ``schema``."""

    schema: dict[str, Any] | None = None

    def report(self, **changes: Any) -> AgentReport:
        report = super().report(**changes)
        return replace(report, plugins=[replace(plugin, options_schema=self.schema) for plugin in report.plugins])


def request(options: dict[str, Any], **values: Any) -> CreateSession:
    given = {"resources": {"cuda.device": 1}, "max_wait_s": 10, **values}
    return CreateSession(image="python", plugin_options=options, **given)


async def test_options_go_from_the_request_to_an_agent_that_takes_them(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.join(OptionedAgent(agent_id="i-01", gpus=[("8.0", "A100")] * 2))
    taking = OptionedAgent(agent_id="i-02", gpus=[("8.0", "A100")], schema=SCHEMA)
    await cluster.join(taking)
    services = cluster.manager.services
    said = {"cuda": {"threads": 4}}
    session = (await services.sessions.create(cluster.user, request({**said, "rocm": {}}))).session
    assert (session.status, session.main.agent) == (SessionStatus.RUNNING, "i-02")
    assert taking.created[-1].plugin_options == said
    waiting = (await services.sessions.create(cluster.user, request(said, max_wait_s=0.3))).session
    assert waiting.status is SessionStatus.PENDING, "the GPUs of i-01 are free, and its plugin takes no options"
    assert waits_for(await services.sessions.get(cluster.user, str(waiting.id)))
    assert await services.resources.plugin_options(cluster.user) == {"cuda": [SCHEMA]}
    manager, database = await start_manager(tmp_path / "manager.db", MemoryLink(), SETTINGS)
    read = await manager.services.sessions.get(cluster.user, str(session.id))
    assert read.plugin_options == said
    await manager.stop()
    await database.close()


@pytest.mark.parametrize(
    ("options", "values", "place", "problem"),
    [
        ({"cuda": {"threads": 9}}, {}, "config.plugin_options.cuda.threads", "9 is greater than the maximum of 8"),
        ({"cuda": {"thread": 1}}, {}, "config.plugin_options.cuda", "'thread' was unexpected"),
        ({"fpga": {"a": 1}}, {}, "config.plugin_options.fpga", "those that do are: cuda"),
        ({"cuda": {"threads": 1}}, {"resources": {"cpu": 1}}, "config.plugin_options.cuda", "request one of its slots"),
    ],
)
async def test_wrong_options_are_refused_at_once(
    cluster: Cluster, options: dict[str, Any], values: dict[str, Any], place: str, problem: str
) -> None:
    await cluster.join(OptionedAgent(agent_id="i-01", gpus=[("8.0", "A100")], schema=SCHEMA))
    with pytest.raises(InvalidInput) as refused:
        await cluster.manager.services.sessions.create(cluster.user, request(options, **values))
    assert problem in refused.value.message
    assert place in refused.value.data
