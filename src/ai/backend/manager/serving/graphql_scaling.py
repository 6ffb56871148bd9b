"""GraphQL queries and mutations of the rules of autoscaling, by the names of published clients."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from ai.backend.common.errors import InvalidInput, NotFound
from ai.backend.core.serving.autoscale import Comparator, MetricSource
from ai.backend.manager.graphql.context import Info, context_of, run_mutation
from ai.backend.manager.graphql.resolvers import mutation, query
from ai.backend.manager.graphql.values import View
from ai.backend.manager.serving.model import AutoscalingRule
from ai.backend.manager.serving.scaling import ScalingService, no_rule
from ai.backend.manager.serving.views import rule_item

_ENUM_FIELDS = ("metric_source", "comparator")


def _enum_name(value: str) -> str:
    return value.upper().replace("-", "_")


def rule_view(stored_rule: AutoscalingRule) -> View:
    """Converts a scaling rule to the fields of a GraphQL node.

    ``cooldown_seconds`` of published clients is a whole number.
    """
    item: View = {**rule_item(stored_rule)}
    item |= {name: _enum_name(item[name]) for name in _ENUM_FIELDS}
    item |= {"row_id": stored_rule.id, "endpoint": stored_rule.endpoint_id, "created_at": stored_rule.created_at}
    return item | {"cooldown_seconds": round(stored_rule.rule.cooldown_s)}


def _changed_fields(props: View) -> View:
    """Returns the fields of an input for :class:`ScalingService`. Raises InvalidInput."""
    values = dict(props)
    for name in ("metric_name", "metric_source", "comparator", "step_size", "cooldown_seconds", "threshold"):
        if values.get(name, "") is None:
            del values[name]
    for name, enum_type in (("metric_source", MetricSource), ("comparator", Comparator)):
        if name in values:
            values[name] = enum_type(values[name].lower().replace("_", "-"))
    if "threshold" in values:
        try:
            values["threshold"] = Decimal(values["threshold"])
        except InvalidOperation:
            raise InvalidInput("threshold is a number.", data={"threshold": "not a number"}) from None
    if not 0 <= values.get("cooldown_seconds", 0) <= 86_400:
        raise InvalidInput("cooldown_seconds is 0 to 86400.", data={"cooldown_seconds": "out of range"})
    return values


def _parse_id(text: str, kind: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise no_rule(text) if kind == "rule" else NotFound(f"There is no endpoint {text[:64]!r}.") from None


class ScalingResolvers:
    """Answers the GraphQL fields of rules; ``scaling`` is None where there are no model services."""

    def __init__(self, scaling: ScalingService | None) -> None:
        self._scaling = scaling

    @query("endpoint_auto_scaling_rule_node")
    async def rule(self, info: Info, id: str) -> View | None:  # noqa: A002  # the argument's name
        if self._scaling is None:
            return None
        try:
            return rule_view(await self._get_rule(self._scaling, info, _parse_id(id, "rule")))
        except NotFound:
            return None

    @query("endpoint_auto_scaling_rule_nodes")
    async def rules(self, info: Info, endpoint: str, **_: Any) -> View:
        views: list[View] = []
        if self._scaling is not None:
            service = await self._scaling.services.get(context_of(info).caller, _parse_id(endpoint, "endpoint"))
            views = [rule_view(each) for each in service.rules]
        edges = [{"node": view, "cursor": str(view["id"])} for view in views]
        page: View = {"hasNextPage": False, "hasPreviousPage": False}
        page |= {
            "startCursor": edges[0]["cursor"] if edges else None,
            "endCursor": edges[-1]["cursor"] if edges else None,
        }
        return {"edges": edges, "count": len(views), "pageInfo": page}

    @mutation("create_endpoint_auto_scaling_rule_node")
    async def create(self, info: Info, endpoint: str, props: View) -> View:
        async def create_rule() -> AutoscalingRule:
            scaling = self._require_scaling()
            return await scaling.add_rule(
                context_of(info).caller, _parse_id(endpoint, "endpoint"), _new_rule_fields(_changed_fields(props))
            )

        return await run_mutation(info, "rule", endpoint, create_rule, rule_view)

    @mutation("modify_endpoint_auto_scaling_rule_node")
    async def modify(self, info: Info, id: str, props: View) -> View:  # noqa: A002  # the argument's name
        async def modify_rule() -> AutoscalingRule:
            scaling, caller = self._require_scaling(), context_of(info).caller
            rule = await self._get_rule(scaling, info, _parse_id(id, "rule"))
            return await scaling.modify_rule(caller, rule.endpoint_id, rule.id, _changed_fields(props))

        return await run_mutation(info, "rule", id, modify_rule, rule_view)

    @mutation("delete_endpoint_auto_scaling_rule_node")
    async def delete(self, info: Info, id: str) -> View:  # noqa: A002  # the argument's name
        async def delete_rule() -> None:
            scaling, caller = self._require_scaling(), context_of(info).caller
            rule = await self._get_rule(scaling, info, _parse_id(id, "rule"))
            await scaling.remove_rule(caller, rule.endpoint_id, rule.id)

        return await run_mutation(info, "rule", id, delete_rule)

    def _require_scaling(self) -> ScalingService:
        if self._scaling is None:
            raise NotFound("This installation has no model services.")
        return self._scaling

    async def _get_rule(self, scaling: ScalingService, info: Info, rule_id: UUID) -> AutoscalingRule:
        service = await scaling.get_by_rule(context_of(info).caller, rule_id)
        return next(each for each in service.rules if each.id == rule_id)


def _new_rule_fields(values: View) -> View:
    """Returns the fields of a new rule: bounds that are not given are None."""
    return {"min_replicas": None, "max_replicas": None, **values}
