"""Posts callbacks of sessions over HTTP, except to networks that only the manager can reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from ai.backend.common.errors import AddressRefused
from ai.backend.infra.http.outbound import OutboundClient, OutboundFailed, parse_networks, parse_url
from ai.backend.infra.telemetry.tracing import HEADER, current_traceparent
from ai.backend.manager.events.settings import WebhookSettings
from ai.backend.manager.events.webhook_gateway import WebhookFailed

ID_HEADER = "X-BackendAI-Callback-Id"


class HttpCallbackSender:
    """Implements :class:`ai.backend.manager.events.webhook_gateway.WebhookSender`. Redirects are not followed, and the
    body of the response is not read."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._client = OutboundClient(
            refused=parse_networks(*settings.refused_networks),
            timeout=aiohttp.ClientTimeout(total=settings.timeout_s),
            connections=0,
            user_agent="backendai-manager",
            keeps_alive=False,
        )

    async def send(self, url: str, callback_id: int, body: Mapping[str, Any]) -> None:
        headers = {ID_HEADER: str(callback_id)}
        traceparent = current_traceparent()
        if traceparent is not None:
            headers[HEADER] = traceparent
        try:
            outbound_target = parse_url(url, with_credentials=True)
            async with self._client.request("POST", outbound_target, headers=headers, json=body) as response:
                if not 200 <= response.status < 300:
                    raise WebhookFailed(f"status {response.status}")
        except AddressRefused:
            raise WebhookFailed("its address is in one of callbacks.refused-networks", can_retry=False) from None
        except OutboundFailed:
            raise WebhookFailed("there is no response") from None

    async def close(self) -> None:
        await self._client.close()
