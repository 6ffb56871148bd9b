"""The start of a session from a template replaces the variants and device requests of the template."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.func.session_template import Kind
from ai.backend.client.session import AsyncSession
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.shell import Shell
from tests.component.manager.api.test_claims_named import cluster, make
from tests.component.manager.api.test_session_defaults_api import keep
from tests.component.manager.test_variants import GpuAgent

TEMPLATE = """
api_version: v1
kind: taskTemplate
metadata: {name: kept}
spec:
  kernel: {image: python}
  resources: {cpu: 1, mem: 64m, cuda.device: 1}
  variantRequirements: ["nvidia::compute_capability::8.0"]
  deviceRequests: ['model == "A100"']
"""
GPUS = {"A100": "gpu-0", "H100": "gpu-1"}


@pytest.fixture
async def gpus(api: Api) -> GpuAgent:
    agent = GpuAgent(agent_id="i-02", gpus=[("8.0", "A100"), ("9.0", "H100")])
    await api.cluster.join(agent)
    return agent


def held(agent: GpuAgent) -> list[str]:
    """Returns the devices of the newest kernel."""
    return [*agent.created[-1].devices["cuda.device"]]


async def session(api: Api, name: str) -> tuple[list[str], list[str]]:
    """Returns the variants and the device requests of a session."""
    found = await api.cluster.manager.services.sessions.get(api.cluster.user, name)
    return [*found.variant_requirements], [*found.device_requests]


async def test_the_command_overrides_what_the_devices_of_a_template_must_be(
    api: Api, shell: Shell, gpus: GpuAgent
) -> None:
    kept = await keep(api.user, TEMPLATE)
    await shell.own("start-template", kept, "-t", "as-kept", by=api.user)
    assert held(gpus) == [GPUS["A100"]]
    request = 'model == "H100"'
    await shell.own("start-template", kept, "-t", "other", "--device-request", request, by=api.user)
    assert (held(gpus), await session(api, "other")) == (
        [GPUS["H100"]],
        (["nvidia::compute_capability::8.0"], [request]),
    )
    for name in ("as-kept", "other"):
        await shell.own("rm", "-f", name, by=api.user)
    variants = ("--variant", "nvidia::compute_capability::9.0", "--device-request", "")
    await shell.own("start-template", kept, "-t", "newest", *variants, by=api.user)
    assert (held(gpus), await session(api, "newest")) == ([GPUS["H100"]], (["nvidia::compute_capability::9.0"], []))


async def test_a_malformed_override_names_its_column_and_creates_nothing(
    api: Api, shell: Shell, gpus: GpuAgent
) -> None:
    kept = await keep(api.user, TEMPLATE)
    wrong = ("--device-request", "memory >=")
    await shell.own("start-template", kept, "-t", "wrong", *wrong, by=api.user, fails="ends too early at column 10")
    await shell.own("start-template", kept, "-t", "wrong", "--variant", "nvidia", by=api.user, fails="nvidia")
    assert gpus.created == []


async def test_a_claim_takes_the_place_of_what_a_template_says_of_devices(api: Api, shell: Shell) -> None:
    kept = await keep(api.user, TEMPLATE.replace("cuda.device: 1", "mock.device: 1"))
    await make(api)
    command = ("start-template", kept, "-t", "claiming", "--claim", "gpus", "-r", "mock.device=0")
    await shell.own(*command, by=api.user, fails="not the session")
    await shell.own(*command, "--variant", "", "--device-request", "", by=api.user)
    assert (await api.user.request("GET", "/session/claiming")).json()["claim"] == "gpus"


async def test_the_sdk_overrides_them_for_templates_of_both_kinds(api: Api, gpus: GpuAgent) -> None:
    kept = await keep(api.user, TEMPLATE)
    roles = await keep(api.user, cluster({"role": "main", "session_template": kept}), "cluster")
    config = APIConfig(
        endpoint=f"http://127.0.0.1:{api.port}", access_key=api.user.access_key, secret_key=api.user.secret_key
    )
    requests: dict[str, Any] = {"device_requests": ['model == "H100"'], "variant_requirements": []}
    async with AsyncSession(config=config) as sdk:
        kinds: dict[Kind, str] = {"session": kept, "cluster": roles}
        for kind, template_id in kinds.items():
            name = f"of-{kind}"
            fields: dict[str, Any] = {"name": name, "maxWaitSeconds": 10, "config": {"environ": {"A": "1"}}}
            await sdk.SessionTemplate.start(template_id, kind=kind, **fields, **requests)
            assert (held(gpus), gpus.created[-1].environ["A"]) == ([GPUS["H100"]], "1")
            assert await session(api, name) == ([], ['model == "H100"'])
            assert (await api.user.request("DELETE", f"/session/{name}?forced=true")).status == 200
            async with asyncio.timeout(20):
                while gpus.kernels:  # noqa: ASYNC110  # the agent of the bench keeps its kernels in a mapping
                    await asyncio.sleep(0.02)  # a plain mapping has no event
