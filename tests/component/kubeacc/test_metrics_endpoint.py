"""The endpoint of the node plugin's metrics, over HTTP."""

from __future__ import annotations

import asyncio

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ai.backend.infra.loop import cancel_all
from ai.backend.infra.settings.tables import HostPort
from ai.backend.kubeacc.node_plugin.metrics import serve_metrics
from tests.support.cluster import free_port
from tests.unit.kubeacc.node_plugin.test_metrics import Plugin, parts


async def test_the_endpoint_is_prometheus_text() -> None:
    port = free_port()
    text = ""
    task = asyncio.ensure_future(serve_metrics(HostPort(host="127.0.0.1", port=port), *parts(Plugin())))
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(10):
            while True:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/metrics") as answer:
                        text = await answer.text()
                    break
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.01)  # the server does not say when it listens
            async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                assert answer.status == 200
    finally:
        await cancel_all(task)
    samples = {s.name: s for family in text_string_to_metric_families(text) for s in family.samples}
    assert samples["backendai_kube_acc_node_healthy_devices"].value == 2
    assert samples["backendai_pod_device"].labels["pod"] == 'a"b'
