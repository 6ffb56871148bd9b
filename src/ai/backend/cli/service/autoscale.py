"""`backend.ai service autoscale`: how the number of replicas follows the load of a service."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ai.backend.cli.framework.lazy import LazyGroup, LeafCommand, Outcome, screen_of
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import options
from ai.backend.cli.framework.values import readable_time

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

autoscale = LazyGroup("autoscale", help="Let the number of replicas follow the load.")
_RULE_COLUMNS = columns(
    "id/plain: Rule | metric_name: Metric | comparator | threshold/plain | step_size/number: Step"
    " | cooldown_seconds/number: Cooldown | last_triggered_at/time: Triggered"
)
_SOURCES = ("proxy", "inference-framework", "kernel", "prometheus")
_METRIC_HELP = "load, in_flight, queued, requests_per_s or tokens_per_s; or a metric of another --source."
_source = click.option(
    "--source",
    "metric_source",
    type=click.Choice(_SOURCES),
    help="Whose metric: the app proxy's, a gauge of the engine, a statistic of the kernel, a query of the operator."
    "  [default: proxy]",
)
_COMPARATORS = ("less-than", "less-than-or-equal", "greater-than", "greater-than-or-equal")
_NAME = click.argument("name")
_RULE = click.argument("rule", type=click.UUID)
_bounds = options(
    click.option("--min", "min_replicas", type=click.IntRange(0), help="Replicas at least; 0 lets it scale to zero."),
    click.option("--max", "max_replicas", type=click.IntRange(0), help="Replicas at most."),
)


def _given_values(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@autoscale.command("show")
@_NAME
async def show(api: AsyncSession, name: str) -> None:
    """Show how the service NAME is scaled, with the last decision and its inputs."""
    screen, detail = screen_of(), await api.Service(name).scaling()
    if screen.is_json:
        screen.print_json(detail)
        return
    if not detail["is_enabled"]:
        screen.inform(f"{name} is not scaled by its load. `backend.ai service autoscale set {name}` begins it.")
        return
    target = detail["target"]
    fact_pairs: list[tuple[str, Any]] = [
        (
            "replicas wanted",
            f"{detail['desired_session_count']} of {detail['min_replicas']} to {detail['max_replicas']}",
        ),
        ("target", f"{target['metric']} {target['target']:g} for each replica" if target else "none"),
    ]
    if detail["min_replicas"] == 0:
        fact_pairs.append(("no replica after", f"{detail['idle_s']:g} s without a request"))
    decision = detail["last_decision"]
    screen.print_facts([*fact_pairs, *(decision_facts(decision) if decision is not None else [])])
    if detail["rules"]:
        screen.print_table(detail["rules"], _RULE_COLUMNS)


@autoscale.command("set", cls=LeafCommand)
@_NAME
@_bounds
@click.option("--target", type=click.FloatRange(0, min_open=True), help="The load that one replica is to have.")
@click.option(
    "--metric", default="load", show_default=True, metavar="NAME", help=f"What --target counts: {_METRIC_HELP}"
)
@_source
@click.option("--no-target", is_flag=True, help="Follow the rules alone.")
@click.option("--idle", "idle_s", type=click.FloatRange(1), metavar="SECONDS", help="With --min 0: how long idle.")
@click.option(
    "--down-delay", "down_delay_s", type=click.FloatRange(0), metavar="SECONDS", help="How long a lower load waits."
)
async def set_(
    api: AsyncSession,
    name: str,
    target: float | None,
    metric: str,
    metric_source: str | None,
    no_target: bool,
    **values: Any,
) -> Outcome:
    """Let the number of replicas of the service NAME follow its load. What is not given stays.

    \b
      backend.ai service autoscale set my-service --min 0 --max 8 --target 16
    """
    changes = _given_values(values)
    if target is not None and no_target:
        raise click.UsageError("give --target or --no-target")
    if target is not None:
        changes["target"] = {"target": target, "metric": metric, **_given_values({"metric_source": metric_source})}
    elif no_target:
        changes["target"] = None
    detail = await api.Service(name).set_scaling(**changes)
    return detail, f"{name}: {detail['min_replicas']} to {detail['max_replicas']} replicas, by its load"


@autoscale.command("off", cls=LeafCommand)
@_NAME
async def off(api: AsyncSession, name: str) -> Outcome:
    """End autoscaling of the service NAME with all its rules; its replicas stay."""
    detail = await api.Service(name).end_scaling()
    return detail, f"{name}: {detail['desired_session_count']} replicas stay"


def _rule_options(*, is_new: bool) -> Callable[[Any], Any]:
    return options(
        click.option(
            "--metric", "metric_name", metavar="NAME", required=is_new, help=f"What it looks at: {_METRIC_HELP}"
        ),
        _source,
        click.option(
            "--comparator", type=click.Choice(_COMPARATORS), required=is_new, help="How it compares, per replica."
        ),
        click.option("--threshold", type=click.FloatRange(0), required=is_new, help="What it compares with."),
        click.option(
            "--step", "step_size", type=int, required=is_new, help="Replicas to add; a negative number removes some."
        ),
        click.option("--cooldown", "cooldown_seconds", type=click.FloatRange(0), help="Seconds between two steps."),
        _bounds,
    )


@autoscale.command("add", cls=LeafCommand)
@_NAME
@_rule_options(is_new=True)
async def add(api: AsyncSession, name: str, **values: Any) -> Outcome:
    """Add a rule to the service NAME: a step whenever a metric passes a threshold.

    \b
      backend.ai service autoscale add my-service --metric load --comparator greater-than --threshold 8 --step 1
    """
    rule = await api.Service(name).add_scaling_rule(**_given_values(values))
    return rule, f"{name}: rule {rule['id']} is added"


@autoscale.command("update", cls=LeafCommand)
@_NAME
@_RULE
@_rule_options(is_new=False)
async def update(api: AsyncSession, name: str, rule: UUID, **values: Any) -> Outcome:
    """Change the RULE of the service NAME; what is not given stays."""
    changes = _given_values(values)
    if not changes:
        raise click.UsageError("say what is to change, such as --threshold 8")
    return await api.Service(name).modify_scaling_rule(rule, **changes), f"{name}: rule {rule} is changed"


@autoscale.command("rm", cls=LeafCommand)
@_NAME
@_RULE
async def rm(api: AsyncSession, name: str, rule: UUID) -> Outcome:
    """Remove the RULE of the service NAME."""
    return await api.Service(name).remove_scaling_rule(rule), f"{name}: rule {rule} is removed"


def decision_facts(decision: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns the last decision of autoscaling with its inputs as facts to print."""
    inputs_text = ", ".join(f"{name}={value}" for name, value in decision["inputs"].items() if value is not None)
    change_text = f"{decision['before']} to {decision['desired']} replicas ({decision['reason']})"
    return [
        ("autoscaling", f"{change_text} at {readable_time(decision['at'])}"),
        ("because", decision["explanation"]),
        ("from", inputs_text),
    ]
