"""Stores model services in memory, for tests and simulations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from ai.backend.common.errors import StaleVersion
from ai.backend.common.serving import EndpointStatus
from ai.backend.common.structs import replace
from ai.backend.manager.query.memory import select
from ai.backend.manager.query.model import Page
from ai.backend.manager.serving.model import EndpointQuery, EndpointToken, Service, ServingChange, ServingEvent
from ai.backend.manager.serving.store import name_taken, too_many_endpoints


class MemoryServingStore:
    """Implements :class:`ai.backend.manager.serving.store.ServingStore`."""

    def __init__(self) -> None:
        self._services: dict[UUID, Service] = {}
        self._events: list[ServingEvent] = []
        self._tokens: list[EndpointToken] = []

    async def insert(self, service: Service, event: ServingEvent, *, limit: int) -> None:
        endpoint = service.endpoint
        own_endpoints = [
            each.endpoint
            for each in self._services.values()
            if each.endpoint.is_live and each.endpoint.user_id == endpoint.user_id
        ]
        if len(own_endpoints) >= limit:
            raise too_many_endpoints(limit)
        if endpoint.id in self._services or endpoint.active_name in {each.active_name for each in own_endpoints}:
            raise name_taken(endpoint.name)
        self._services[endpoint.id] = service
        self._events.append(event)

    async def save(self, change: ServingChange) -> None:
        stored_service = self._services.get(change.endpoint.id)
        if stored_service is None or stored_service.endpoint.version != change.version:
            raise StaleVersion(f"endpoint {change.endpoint.id} was changed meanwhile")
        revisions = {
            each.id: each for each in (*stored_service.revisions, *change.revisions) if each.id not in change.dropped
        }
        replicas = {
            each.id: each for each in (*stored_service.replicas, *change.replicas) if each.id not in change.dropped
        }
        rules = {each.id: each for each in (*stored_service.rules, *change.rules) if each.id not in change.dropped}
        self._services[change.endpoint.id] = Service(
            endpoint=replace(change.endpoint, version=change.version + 1),
            revisions=tuple(sorted(revisions.values(), key=lambda each: -each.number)),
            replicas=tuple(sorted(replicas.values(), key=lambda each: (each.created_at, str(each.id)))),
            rules=tuple(sorted(rules.values(), key=lambda each: (each.created_at, str(each.id)))),
        )
        self._events += change.events

    async def get(self, endpoint_id: UUID) -> Service | None:
        return self._services.get(endpoint_id)

    async def get_by_rule(self, rule_id: UUID) -> Service | None:
        owning_services = (each for each in self._services.values() if rule_id in {rule.id for rule in each.rules})
        return next(owning_services, None)

    async def live(self) -> list[Service]:
        services = [each for each in self._services.values() if each.endpoint.status is not EndpointStatus.DESTROYED]
        return sorted(services, key=lambda each: (each.endpoint.created_at, str(each.endpoint.id)))

    async def search(self, query: EndpointQuery) -> Page[Service]:
        filters = {name: getattr(query, name) for name in ("user_id", "access_key", "domain_name", "group_id", "name")}
        endpoints = [
            service.endpoint
            for service in sorted(self._services.values(), key=lambda each: str(each.endpoint.id))
            if all(value is None or getattr(service.endpoint, name) == value for name, value in filters.items())
            and (query.destroyed or service.endpoint.status is not EndpointStatus.DESTROYED)
        ]
        page = select(endpoints, query)
        return Page(items=[self._services[each.id] for each in page.items], total_count=page.total_count)

    async def history(self, endpoint_id: UUID, *, limit: int, offset: int = 0) -> list[ServingEvent]:
        events = [event for event in reversed(self._events) if event.endpoint_id == endpoint_id]
        return events[offset : offset + limit]

    async def add_token(self, token: EndpointToken) -> None:
        self._tokens.append(token)

    async def tokens(self, endpoint_id: UUID, *, limit: int, offset: int = 0) -> Page[EndpointToken]:
        tokens = sorted(
            (each for each in self._tokens if each.endpoint_id == endpoint_id),
            key=lambda each: each.created_at,
            reverse=True,
        )
        return Page(items=tokens[offset : offset + limit], total_count=len(tokens))

    async def purge(self, *, before: datetime) -> int:
        purged_ids = {
            endpoint_id
            for endpoint_id, service in self._services.items()
            if service.endpoint.destroyed_at is not None and service.endpoint.destroyed_at < before
        }
        self._services = {key: service for key, service in self._services.items() if key not in purged_ids}
        self._tokens = [token for token in self._tokens if token.endpoint_id not in purged_ids]
        events: Sequence[ServingEvent] = [each for each in self._events if each.endpoint_id not in purged_ids]
        kept_events = [event for event in events if event.at >= before]
        self._events = kept_events
        return len(events) - len(kept_events)
