"""REST routes of model services (client wire contract 2.8)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from ai.backend.common.errors import NotFound
from ai.backend.infra.clock import Clock
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.fields import duration_s
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Reply, route
from ai.backend.manager.access.requests import SESSION_PROBLEMS, caller_of
from ai.backend.manager.serving import schemas
from ai.backend.manager.serving.definition import runtime_variants
from ai.backend.manager.serving.facade import Serving
from ai.backend.manager.serving.model import EndpointQuery, UseGrouping, UseQuery
from ai.backend.manager.serving.scaling import no_rule
from ai.backend.manager.serving.usage import HOUR_S
from ai.backend.manager.serving.views import (
    creation_of,
    event_item,
    modification_of,
    rule_item,
    scaling_reply,
    sent_fields,
    service_item,
    service_reply,
    total_rate,
    usage_reply,
    why_reply,
)

_MAX_LISTED = 1_000


def _route_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound("The endpoint has no such route.", data={"route_id": "unknown"}) from None


def _rule_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise no_rule(text) from None


class ServicesApi:
    """Serves endpoints. ``{e}`` is an id, or the name of the caller's own endpoint; those of others are not found."""

    owner_key = OwnerKey.ASSUMED
    problems = SESSION_PROBLEMS

    def __init__(self, serving: Serving, clock: Clock) -> None:
        self._serving = serving
        self._services = serving.service
        self._clock = clock

    @route("GET", "/services", query=schemas.ListServicesQuery)
    async def list(self, call: Call[Nothing, schemas.ListServicesQuery]) -> list[schemas.ServiceItem]:
        """List the endpoints that the caller sees, newest first."""
        query = EndpointQuery(name=call.query.name, limit=_MAX_LISTED)
        page = await self._services.search(caller_of(call), query)
        return [service_item(service) for service in page.items]

    @route(
        "POST",
        "/services",
        body=schemas.CreateServiceBody,
        body_aliases=schemas.CREATE_ALIASES,
        reply=schemas.ServiceReply,
        status=201,
        repeatable=True,  # the endpoint has the id of the call
    )
    async def create(self, call: Call[schemas.CreateServiceBody]) -> Reply:
        """Create an endpoint; its replicas start in the background."""
        request = creation_of(call.body, None)
        service = await self._services.create(caller_of(call), request, call_id=call.call_id)
        return Reply(service_reply(service), 201)

    @route("POST", "/services/_/try", body=schemas.CreateServiceBody, body_aliases=schemas.CREATE_ALIASES)
    async def try_start(self, call: Call[schemas.CreateServiceBody]) -> schemas.TrialReply:
        """Start one replica in a background task, probe it and end it; the task tells how far it got."""
        return {"task_id": await self._serving.trials.start(caller_of(call), creation_of(call.body, None))}

    @route("GET", "/services/_/runtimes")
    async def runtimes(self, call: Call) -> schemas.VariantsReply:
        """List the runtime variants: kinds of inference servers whose command is known."""
        items: list[schemas.VariantItem] = [
            {
                "name": name,
                "title": variant.title,
                "command": variant.command,
                "health_path": variant.health_path,
            }
            for name, variant in runtime_variants().items()
        ]
        return {"runtimes": items}

    @route("GET", "/services/{e}", reply=schemas.ServiceReply)
    async def get(self, call: Call) -> schemas.ServiceReply:
        """Describe an endpoint with its replicas and revisions."""
        now, usage = self._clock.now(), self._serving.usage
        query = usage.query(since=int(now.timestamp()) - HOUR_S, until=None, by=UseGrouping.HOUR, limit=1)
        service, report = await usage.endpoint_report(caller_of(call), call.params["e"], query)
        return service_reply(service, total_rate(query, report, now))

    @route("PATCH", "/services/{e}", body=schemas.ModifyServiceBody, reply=schemas.ServiceReply)
    async def modify(self, call: Call[schemas.ModifyServiceBody]) -> schemas.ServiceReply:
        """Change an endpoint; another image, model, command or environment is rolled out as a new revision."""
        request = modification_of(call.body)
        return service_reply(await self._services.modify(caller_of(call), call.params["e"], request))

    @route("DELETE", "/services/{e}")
    async def destroy(self, call: Call) -> schemas.SuccessReply:
        """End an endpoint with all its replicas; replies before they have ended."""
        await self._services.destroy(caller_of(call), call.params["e"])
        return {"success": True}

    @route("POST", "/services/{e}/sync")
    async def sync(self, call: Call) -> schemas.SuccessReply:
        """Send the routes of an endpoint to the app proxy again."""
        await self._services.sync(caller_of(call), call.params["e"])
        return {"success": True}

    @route("POST", "/services/{e}/scale", body=schemas.ScaleBody)
    async def scale(self, call: Call[schemas.ScaleBody]) -> schemas.ScaledReply:
        """Change the desired number of replicas."""
        service = await self._services.scale(caller_of(call), call.params["e"], call.body.to)
        item = service_item(service)
        return {
            "success": True,
            "current_route_count": item["active_route_count"],
            "target_count": item["desired_session_count"],
        }

    @route("POST", "/services/{e}/rollback")
    async def rollback(self, call: Call) -> schemas.SuccessReply:
        """Roll back the revision that is being rolled out."""
        await self._services.cancel_rollout(caller_of(call), call.params["e"])
        return {"success": True}

    @route("POST", "/services/{e}/promote")
    async def promote(self, call: Call) -> schemas.SuccessReply:
        """End the present step of a canary, or the watch of a blue-green roll-out."""
        await self._services.promote(caller_of(call), call.params["e"])
        return {"success": True}

    @route("POST", "/services/{e}/token", body=schemas.TokenBody)
    async def token(self, call: Call[schemas.TokenBody]) -> schemas.TokenReply:
        """Make a token by which the endpoint is called. It is told once and cannot be revoked."""
        body = call.body
        if (body.duration is None) == (body.valid_until is None):
            raise refuse({"duration": "give a duration as 1d, or valid_until"})
        if body.valid_until is not None:
            valid_until = datetime.fromtimestamp(body.valid_until, UTC)
        else:
            duration = float(body.duration) if isinstance(body.duration, int) else body.duration
            validity_s = duration_s(duration, field="duration")
            assert validity_s is not None
            valid_until = self._clock.now() + timedelta(seconds=min(validity_s, 1e9))
        token_text, _ = await self._services.make_token(caller_of(call), call.params["e"], valid_until=valid_until)
        return {"token": token_text}

    @route("PUT", "/services/{e}/routings/{r}", body=schemas.TrafficRatioBody)
    async def set_traffic_ratio(self, call: Call[schemas.TrafficRatioBody]) -> schemas.SuccessReply:
        """Change the weight of a replica among those of its revision."""
        route_id = _route_id(call.params["r"])
        await self._services.set_traffic_ratio(
            caller_of(call), call.params["e"], route_id, float(call.body.traffic_ratio)
        )
        return {"success": True}

    @route("DELETE", "/services/{e}/routings/{r}")
    async def remove_replica(self, call: Call) -> schemas.SuccessReply:
        """End one replica, and lower the desired number by one."""
        await self._services.remove_replica(caller_of(call), call.params["e"], _route_id(call.params["r"]))
        return {"success": True}

    @route("GET", "/services/{e}/history", query=schemas.HistoryQuery)
    async def history(self, call: Call[Nothing, schemas.HistoryQuery]) -> schemas.HistoryReply:
        """List the changes of an endpoint with their reasons, newest first."""
        query = call.query
        events = await self._services.history(caller_of(call), call.params["e"], limit=query.limit, offset=query.offset)
        return {"events": [event_item(event) for event in events]}

    @route("GET", "/services/{e}/scaling", reply=schemas.ScalingReply)
    async def scaling(self, call: Call) -> schemas.ScalingReply:
        """Describe how an endpoint is scaled by its load, with the last decision."""
        return scaling_reply(await self._services.get(caller_of(call), call.params["e"]))

    @route("PATCH", "/services/{e}/scaling", body=schemas.ScalingBody, reply=schemas.ScalingReply)
    async def set_scaling(self, call: Call[schemas.ScalingBody]) -> schemas.ScalingReply:
        """Let the number of replicas follow the load, or change how it does."""
        changes = sent_fields(call.body)
        return scaling_reply(await self._serving.scaling.set(caller_of(call), call.params["e"], changes))

    @route("DELETE", "/services/{e}/scaling", reply=schemas.ScalingReply)
    async def end_scaling(self, call: Call) -> schemas.ScalingReply:
        """End autoscaling with all its rules; the present number of replicas stays."""
        return scaling_reply(await self._serving.scaling.end(caller_of(call), call.params["e"]))

    @route(
        "POST", "/services/{e}/scaling/rules", body=schemas.ScalingRuleBody, reply=schemas.ScalingRuleItem, status=201
    )
    async def add_scaling_rule(self, call: Call[schemas.ScalingRuleBody]) -> Reply:
        """Add a rule of autoscaling, which begins with the first rule."""
        rule = await self._serving.scaling.add_rule(caller_of(call), call.params["e"], sent_fields(call.body))
        return Reply(rule_item(rule), 201)

    @route("PATCH", "/services/{e}/scaling/rules/{r}", body=schemas.ModifyScalingRuleBody)
    async def modify_scaling_rule(self, call: Call[schemas.ModifyScalingRuleBody]) -> schemas.ScalingRuleItem:
        """Change a rule of autoscaling."""
        rule_id, changes = _rule_id(call.params["r"]), sent_fields(call.body)
        return rule_item(await self._serving.scaling.modify_rule(caller_of(call), call.params["e"], rule_id, changes))

    @route("DELETE", "/services/{e}/scaling/rules/{r}")
    async def remove_scaling_rule(self, call: Call) -> schemas.SuccessReply:
        """Remove a rule of autoscaling; the bounds stay."""
        await self._serving.scaling.remove_rule(caller_of(call), call.params["e"], _rule_id(call.params["r"]))
        return {"success": True}

    @route("GET", "/services/_/usage", query=schemas.UsageQuery)
    async def usage(self, call: Call[Nothing, schemas.UsageQuery]) -> schemas.UsageReply:
        """Report what tokens used at all endpoints that the caller sees."""
        query = self._use_query(call.query)
        report = await self._serving.usage.total_report(caller_of(call), query)
        return usage_reply(query, report, self._clock.now())

    @route("GET", "/services/{e}/usage", query=schemas.UsageQuery)
    async def endpoint_usage(self, call: Call[Nothing, schemas.UsageQuery]) -> schemas.UsageReply:
        """Report what tokens used at an endpoint: requests, tokens of prompts and answers, errors."""
        query = self._use_query(call.query)
        service, report = await self._serving.usage.endpoint_report(caller_of(call), call.params["e"], query)
        return usage_reply(query, report, self._clock.now(), service.revisions)

    def _use_query(self, query: schemas.UsageQuery) -> UseQuery:
        return self._serving.usage.query(since=query.since, until=query.until, by=query.by, limit=query.limit)

    @route("GET", "/services/{e}/why", reply=schemas.WhyReply)
    async def why(self, call: Call) -> schemas.WhyReply:
        """Explain the state of an endpoint: the last plan, what cannot be done, the reason of each replica."""
        service = await self._services.get(caller_of(call), call.params["e"])
        return why_reply(service, await self._serving.obstacles(service))
