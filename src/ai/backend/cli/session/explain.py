"""Explains whether a session starts, and if not, why: `backend.ai explain` and `start --dry-run`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import fetch_slot_displays
from ai.backend.cli.framework.lazy import LeafCommand, Outcome, screen_of
from ai.backend.cli.framework.output import Screen
from ai.backend.cli.framework.values import SlotDisplays, describe_slots
from ai.backend.cli.session.commands import find_session, owner_option

if TYPE_CHECKING:
    from ai.backend.client.func.creation import CreateOptions
    from ai.backend.client.session import AsyncSession

_REMEDIES = {
    "time": "It starts by itself.",
    "others": "It starts when somebody frees what it lacks.",
    "change": "It starts once the request or the cluster is changed.",
}
_EXCLUSIONS = {
    "not-schedulable": "not taking sessions",
    "not-designated": "not among the chosen agents",
    "architecture": "of another architecture",
    "feature": "without a feature that it needs",
    "image": "without the image",
    "no-such-device": "without such resources",
    "too-small": "too small, even empty",
    "reserved": "kept for a session that came first",
    "busy": "busy",
    "scattered": "free, but not on one device",
}
_MAX_NAMES = 5


def verdict_line(explanation: Mapping[str, Any]) -> str:
    """Formats the verdict of an explanation in one line: the session starts, waits or cannot start, and the reason."""
    message, verdict = str(explanation.get("message") or ""), explanation["verdict"]
    if verdict in ("now", "started", "ended"):
        return message
    verdict_word = "cannot" if verdict == "never" else "waits"
    reason_text = message.removeprefix("waits ")
    return f"{verdict_word}: {reason_text}" if reason_text == message or verdict == "never" else f"waits {reason_text}"


def explanation_facts(explanation: Mapping[str, Any], displays: SlotDisplays) -> Iterator[tuple[str, str]]:
    """Yields the details of an explanation as pairs of heading and text, such as the place in the queue.

    Empty ones are left out.
    """
    if explanation.get("reason"):
        yield "Reason", str(explanation["reason"])
    if explanation.get("remedy"):
        yield "Remedy", _REMEDIES[explanation["remedy"]]
    if explanation.get("count", 1) > 1:
        yield "Start Now", f"{explanation['placed']} of {explanation['count']}"
    if explanation.get("position"):
        sessions_ahead = _format_names(explanation["ahead"])
        yield (
            "Place",
            f"{explanation['position']} of {explanation['waiting']}"
            + (f"; ahead: {sessions_ahead}" if sessions_ahead else ""),
        )
    if explanation.get("behind"):
        yield "Behind", str(explanation["behind"]["name"])
    if reserved_agents := explanation.get("reserved"):
        agent_names = f": {', '.join(reserved_agents['agents'][:_MAX_NAMES])}" if reserved_agents["agents"] else ""
        yield "Kept for It", f"{reserved_agents['count']} agents{agent_names}"
    if holder_names := _format_names(explanation.get("holders") or {}):
        yield "Held by", holder_names
    agents = explanation.get("agents") or {}
    if agents.get("total"):
        exclusion_texts = [
            f"{exclusion['count']} {_EXCLUSIONS.get(exclusion['reason'], exclusion['reason'])}"
            for exclusion in agents["excluded"]
        ]
        yield "Agents", "; ".join([f"{agents['startable']} of {agents['total']} could take it", *exclusion_texts])
    if withheld_devices := explanation.get("withheld"):
        yield "Withheld", _format_withheld_devices(withheld_devices)
    for limit in explanation.get("limits") or ():
        slot = limit["slot"]
        amounts = (describe_slots({slot: limit[name]}, displays) for name in ("limit", "used", "requested"))
        yield f"Limit of {limit['scope'].title()}", "{}; used {}; requested {}".format(*amounts)
    for nearest_request in explanation.get("nearest") or ():
        kernels_text = f", {nearest_request['cluster_size']} kernels" if nearest_request["cluster_size"] > 1 else ""
        devices_text = "".join(
            f", by {device_request}" for device_request in nearest_request.get("device_requests") or ()
        )
        yield "Would Start Now", describe_slots(nearest_request["resources"], displays) + kernels_text + devices_text


def _format_withheld_devices(devices: Sequence[Mapping[str, Any]]) -> str:
    """Formats devices that nobody is given: ``cuda GPU-5a7c on i-01 (cordoned: fan replaced on Friday)``."""
    device_texts = [
        f"{device['device_name']} {device['device_id']}{' on ' + device['agent'] if device['agent'] else ''}"
        f" ({device['reason']})"
        for device in devices[:_MAX_NAMES]
    ]
    hidden_count = len(devices) - len(device_texts)
    return "; ".join([*device_texts, *([f"{hidden_count} more"] if hidden_count else [])])


def _format_names(sessions: Mapping[str, Any]) -> str:
    """Formats sessions: the names of those that the user may see, and the number of the others."""
    count, visible_sessions = sessions.get("count", 0), sessions.get("visible", [])
    names = [str(session["name"]) for session in visible_sessions[:_MAX_NAMES]]
    if count > len(names):
        names.append(f"{count - len(names)} {'more' if names else 'sessions of others'}")
    return ", ".join(names)


async def print_explanation(api: AsyncSession, screen: Screen, explanation: Mapping[str, Any]) -> None:
    """Prints an explanation of a session's wait: first its verdict, then its details."""
    if screen.is_json:
        screen.print_json(dict(explanation))
        return
    screen.print_line(verdict_line(explanation))
    displays = await fetch_slot_displays(api)
    screen.print_facts(explanation_facts(explanation, displays))


async def print_dry_run(api: AsyncSession, screen: Screen, image: str, creation: CreateOptions, count: int) -> int:
    """Prints what would become of a request. Returns 0 if it would start now, else 1."""
    explanation = await api.ComputeSession.explain_request(image, count=count, **creation)
    await print_explanation(api, screen, explanation)
    return 0 if explanation["verdict"] == "now" else 1


@click.command(cls=LeafCommand)
@click.argument("session")
@owner_option
async def explain(api: AsyncSession, session: str, owner: str | None) -> Outcome:
    """Tell why SESSION waits: its place in the queue, what it lacks, and who holds that.

    `backend.ai start --dry-run` tells the same about a session before there is one.
    """
    found_session = await find_session(api, session, owner)
    await print_explanation(api, screen_of(), await found_session.explain())
    return None
