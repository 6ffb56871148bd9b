"""Counts accelerators in Placement, so that an allocated share of a device is not given to a second consumer."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from ai.backend.common.errors import Conflict, InsufficientResource, NotFound
from ai.backend.kubeacc.drivers.cyborg.connection import Cloud
from ai.backend.kubeacc.drivers.cyborg.model import Allocations, Inventories, ResourceProvider

_CONSUMER_TYPE = "KUBE_ACC"


class Stock(NamedTuple):
    """Describes the inventory of a deployable: ``host`` is its compute host, ``usable`` the shares that are not
    reserved."""

    provider: str
    host: str
    resource: str
    usable: int


class Placement:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._hosts: dict[str, str] = {}

    async def stock(self, provider: str) -> Stock:
        """Returns the inventory of a resource provider in Placement.

        Raises NotFound: Placement has no such provider, or nothing of it; and as :meth:`Cloud.request` does.
        """
        path = f"/resource_providers/{provider}/inventories"
        inventories = (await self._cloud.request("placement", "GET", path, Inventories)).inventories
        if not inventories:
            raise NotFound(f"Placement has no inventory of {provider}")
        resource, inventory = sorted(inventories.items())[0]  # Cyborg writes one
        usable_shares = max(0, inventory.total - inventory.reserved)
        return Stock(provider, await self._host(provider), resource, usable_shares)

    async def has(self, consumer: str) -> bool:
        """Returns True if a consumer has at least one share."""
        return bool((await self._allocations(consumer)).allocations)

    async def allocate(self, consumer: str, stock: Stock, amount: int) -> None:
        """Allocates exactly ``amount`` shares to a consumer. Raises InsufficientResource: they are not free."""
        project, user = await self._cloud.project_and_user()
        body = {
            "allocations": {stock.provider: {"resources": {stock.resource: amount}}},
            "project_id": project,
            "user_id": user,
            "consumer_generation": (await self._allocations(consumer)).consumer_generation,
            "consumer_type": _CONSUMER_TYPE,
        }
        try:
            await self._cloud.request("placement", "PUT", f"/allocations/{consumer}", type(None), body=body)
        except Conflict as e:
            message = f"Placement does not give {amount} of {stock.resource} at {stock.host}: {e.message}"
            raise InsufficientResource(message) from None

    async def release(self, consumer: str) -> None:
        """Frees all shares of a consumer. A consumer without shares is no error."""
        with suppress(NotFound):
            await self._cloud.request("placement", "DELETE", f"/allocations/{consumer}", type(None))

    async def _allocations(self, consumer: str) -> Allocations:
        return await self._cloud.request("placement", "GET", f"/allocations/{consumer}", Allocations)

    async def _host(self, provider: str) -> str:
        """Returns the name of the compute host, the root of a provider's tree; it stays as long as the provider."""
        if provider not in self._hosts:
            provider_details = await self._provider(provider)
            self._hosts[provider] = (await self._provider(provider_details.root_provider_uuid)).name
        return self._hosts[provider]

    async def _provider(self, uuid: str) -> ResourceProvider:
        return await self._cloud.request("placement", "GET", f"/resource_providers/{uuid}", ResourceProvider)
