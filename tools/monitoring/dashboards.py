"""Dashboards of Grafana, one for each role, as data from which the SDK of Grafana makes their JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import DataSourceRef

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_HEIGHT, _WIDTH = 8, 8


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: one query, whose series are named by ``legend``, in a unit of Grafana; a ``number`` shows only now."""

    title: str
    expr: str
    unit: str = "short"
    legend: str = ""
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """A dashboard for people of one role."""

    name: str
    title: str
    panels: Sequence[Panel]


def _requests(job: str) -> tuple[Panel, ...]:
    return (
        Panel(
            "Requests by status",
            f'sum by (status) (rate({{__name__=~"backendai_.+_http_requests_total",job="{job}"}}[5m]))',
            "reqps",
            "{{status}}",
        ),
        Panel(
            "Slowest twentieth of requests",
            "histogram_quantile(0.95, sum by (le) (rate("
            f'{{__name__=~"backendai_.+_http_request_seconds_bucket",job="{job}"}}[5m])))',
            "s",
        ),
    )


ROLES = (
    Role(
        "operator",
        "Operator",
        (
            Panel("Daemons that answer", "sum by (job) (up)", legend="{{job}}"),
            Panel("Daemons that do not answer", "count(up == 0) or count(up) * 0", is_number=True),
            Panel("Alerts", 'count(ALERTS{alertstate="firing"}) or count(up) * 0', is_number=True),
            *_requests("backendai-manager"),
            Panel("Requests that fail on our side", "backendai:http_errors:ratio5m"
                  " or 0 * sum by (job) (backendai:http_requests:rate5m)", "percentunit", "{{job}}"),
            Panel("Processors of nodes", "backendai:node_cpu:ratio", "percentunit", "{{agent}}"),
            Panel("Memory of nodes", "backendai:node_mem:ratio", "percentunit", "{{agent}}"),
            Panel("Disks of nodes", "backendai:node_disk:ratio", "percentunit", "{{agent}} {{device_id}}"),
            Panel("Rounds of loops that failed", "sum by (loop) (rate(backendai_manager_loop_failures_total[5m]))",
                  legend="{{loop}}"),
        ),
    ),
    Role(
        "scheduler",
        "Scheduler",
        (
            Panel("Sessions by status", "backendai:sessions:sum", legend="{{status}}"),
            Panel("Waiting sessions", 'max(backendai_manager_sessions{status="PENDING"})', is_number=True),
            Panel("Longest wait", "max(backendai_manager_sessions_oldest_pending_seconds)", "s"),
            Panel("Sessions that end", "sum by (reason) (rate(backendai_manager_sessions_ended_total[5m]))",
                  legend="{{reason}}"),
            Panel("Agents", "max(backendai_manager_agents_alive)", is_number=True),
            Panel("Time since the last round", "time() - max by (loop) "
                  '(backendai_manager_loop_succeeded_timestamp_seconds{loop=~"ScheduleLoop|LaunchLoop|TerminateLoop"})',
                  "s", "{{loop}}"),
        ),
    ),
    Role(
        "accelerators",
        "Accelerators",
        (
            Panel("Use of devices", '{__name__=~"backendai_device_.+_util_ratio"}', "percentunit",
                  "{{agent}} {{device_name}} {{index}}"),
            Panel("Memory of devices", '{__name__=~"backendai_device_.+_mem_bytes"}', "bytes",
                  "{{agent}} {{device_name}} {{index}}"),
            Panel("Power", 'sum by (agent, device_name) ({__name__=~"backendai_device_.+_power_watts"})', "watt",
                  "{{agent}} {{device_name}}"),
            Panel("Temperature", '{__name__=~"backendai_device_.+_temperature_celsius"}', "celsius",
                  "{{agent}} {{device_name}} {{index}}"),
        ),
    ),
    Role(
        "storage",
        "Storage",
        (
            Panel("Storage proxies", 'sum(up{job="backendai-storage-proxy"})', is_number=True),
            Panel("Volumes", "sum by (name) (backendai_storage_proxy_volumes)", legend="{{name}}"),
            Panel("Volumes that cannot be used", "sum(backendai_storage_proxy_volumes_unhealthy)", is_number=True),
            *_requests("backendai-storage-proxy"),
        ),
    ),
    Role(
        "serving",
        "Apps and models",
        (
            Panel("Workers", 'sum(up{job="backendai-app-proxy-worker"})', is_number=True),
            Panel("Circuits", "sum by (name) (backendai_appproxy_circuits)", legend="{{name}}"),
            Panel("Open connections", "sum by (name) (backendai_appproxy_open_connections)", legend="{{name}}"),
            Panel("Requests that wait for a replica", "sum by (name) (backendai_appproxy_queued_requests)",
                  legend="{{name}}"),
            Panel("Bytes to clients", "sum by (name) (rate(backendai_appproxy_sent_bytes_total[5m]))", "Bps",
                  "{{name}}"),
            Panel("Workers that are linked", "sum(backendai_appproxy_linked)", is_number=True),
            *_requests("backendai-app-proxy-coordinator"),
        ),
    ),
    Role(
        "user",
        "What there is for users",
        (
            Panel("Running sessions", 'max(backendai_manager_sessions{status="RUNNING"})', is_number=True),
            Panel("Waiting sessions", 'max(backendai_manager_sessions{status="PENDING"})', is_number=True),
            Panel("Processors of all sessions", "sum(backendai_workloads_cpu_util_ratio)", "percentunit"),
            Panel("Memory of all sessions", "sum(backendai_workloads_mem_bytes)", "bytes"),
            Panel("Free memory of nodes", "backendai_node_mem_capacity_bytes - backendai_node_mem_bytes", "bytes",
                  "{{agent}}"),
        ),
    ),
)  # fmt: skip


def _panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    query = prometheus.Dataquery().ref_id("A").expr(panel.expr).legend_format(panel.legend)
    made = stat.Panel() if panel.is_number else timeseries.Panel()
    return made.title(panel.title).unit(panel.unit).datasource(_SOURCE).height(_HEIGHT).span(_WIDTH).with_target(query)


def dashboard_json(role: Role) -> str:
    """Return the dashboard of a role as Grafana imports it; it asks which Prometheus to use."""
    made = (
        dashboard.Dashboard(f"Backend.AI: {role.title}")
        .uid(f"backendai-{role.name}")
        .tags(["backendai"])
        .refresh("30s")
        .time("now-6h", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for panel in role.panels:
        made = made.with_panel(_panel(panel))
    return str(JSONEncoder(sort_keys=True, indent=2).encode(made.build())) + "\n"
