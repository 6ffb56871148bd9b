"""Recording and alert rules of Prometheus, with the cases by which `promtool` tests them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

RUNBOOK = "docs/howto/runbooks.md"


@dataclass(frozen=True, slots=True)
class RecordingCase:
    """A test of a recording: series with their values each minute, and its samples at ``at``, the values by labels."""

    series: Mapping[str, str]
    at: str
    samples: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that Prometheus computes at each evaluation."""

    record: str
    expr: str
    cases: Sequence[RecordingCase] = field(default=())


@dataclass(frozen=True, slots=True)
class Case:
    """A test of an alert: series with their values each minute, and whether it fires at ``at``; ``others``
    are alerts that may fire beside it."""

    series: Mapping[str, str]
    at: str
    fires: Sequence[Mapping[str, str]] = ()
    others: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. ``lasts`` is how long its condition holds before it fires, in seconds."""

    name: str
    expr: str
    lasts: int
    severity: str
    summary: str
    cases: Sequence[Case] = field(default=())

    @property
    def runbook(self) -> str:
        return f"{RUNBOOK}#{self.name.lower()}"


_KERNEL = 'agent="i-1",kernel_id="k",runtime_class="kata",session_id="s",workload_id='
_KATA = {
    f'backendai_kernel_workload{{instance="a:1",{_KERNEL}"pod-uid"}}': "1x9",
    f'backendai_kernel_workload{{instance="b:1",{_KERNEL}"pod-uid"}}': "1x9",
    'backendai_kernel_workload{agent="i-2",kernel_id="l",runtime_class="kata",session_id="t",workload_id="abc"}': "1x9",
    'backendai_kernel_workload{agent="i-2",kernel_id="m",runtime_class="",session_id="u",workload_id="def"}': "1x9",
    'kata_hypervisor_proc_status{item="vmrss",sandbox_id="123",cri_uid="pod-uid",cri_name="p"}': "300x9",
    'kata_hypervisor_proc_status{item="vmsize",sandbox_id="123",cri_uid="pod-uid",cri_name="p"}': "900x9",
    'kata_hypervisor_proc_status{item="vmrss",sandbox_id="abc",cri_uid="",cri_name=""}': "200x9",
    'kata_hypervisor_proc_status{item="vmrss",sandbox_id="456",cri_uid="of another pod",cri_name="q"}': "100x9",
}
"""Two kernels in Kata's machines, a pod that two managers list and a container of Docker, a kernel without a machine,
and the pod of somebody else."""


def _joined(label: str) -> str:
    """Return the sandboxes of Kata's monitor that ``label`` joins with the workloads of kernels, which each manager
    lists."""
    of_any_manager = "topk by (workload_id) (1, backendai_kernel_workload)"
    workloads = f'label_replace({of_any_manager}, "{label}", "$1", "workload_id", "(.+)")'
    sandboxes = f'group by (sandbox_id, cri_uid) (kata_hypervisor_proc_status{{item="vmrss",{label}!=""}})'
    return f"{sandboxes} * on ({label}) group_left (agent, session_id, kernel_id) {workloads}"


RECORDINGS = (
    Recording(
        "backendai:http_requests:rate5m",
        "sum by (job, status) (rate("
        '{__name__=~"backendai_.+_http_requests_total",route!~"GET /(metrics|readyz).*"}[5m]))',
    ),
    Recording(
        "backendai:http_errors:ratio5m",
        'sum by (job) (backendai:http_requests:rate5m{status=~"5.."}) / sum by (job) (backendai:http_requests:rate5m)',
    ),
    Recording("backendai:sessions:sum", "max by (status) (backendai_manager_sessions)"),
    Recording(
        "backendai:sessions_failed:increase15m",
        'sum by (reason) (increase(backendai_manager_sessions_ended_total{reason=~"'
        'failed-to-create|failed-to-start|creation-denied|restart-timeout|container-not-found|not-found-in-manager"}[15m]))',
    ),
    Recording("backendai:node_cpu:ratio", "backendai_node_cpu_util_ratio / backendai_node_cpu_util_capacity_ratio"),
    Recording("backendai:node_mem:ratio", "backendai_node_mem_bytes / backendai_node_mem_capacity_bytes"),
    Recording("backendai:node_disk:ratio", "backendai_device_disk_bytes / backendai_device_disk_capacity_bytes"),
    # The id of a workload is the uid of a pod, or the id of a container, which is that of Kata's sandbox then.
    Recording(
        "backendai:kata_sandbox:kernel",
        f"{_joined('cri_uid')} or {_joined('sandbox_id')}",
        (
            RecordingCase(
                _KATA,
                "5m",
                {
                    'sandbox_id="123",cri_uid="pod-uid",agent="i-1",session_id="s",kernel_id="k"': 1,
                    'sandbox_id="abc",cri_uid="",agent="i-2",session_id="t",kernel_id="l"': 1,
                },
            ),
        ),
    ),
    Recording(
        "backendai:kata_hypervisor_memory:bytes",
        'sum by (sandbox_id) (kata_hypervisor_proc_status{item="vmrss"})'
        " * on (sandbox_id) group_left (agent, session_id, kernel_id) backendai:kata_sandbox:kernel",
        (
            RecordingCase(
                _KATA,
                "5m",
                {
                    'sandbox_id="123",agent="i-1",session_id="s",kernel_id="k"': 300,
                    'sandbox_id="abc",agent="i-2",session_id="t",kernel_id="l"': 200,
                },
            ),
        ),
    ),
)


def _up(job: str, values: str, **labels: str) -> dict[str, str]:
    names = "".join(f',{name}="{value}"' for name, value in labels.items())
    return {f'up{{job="backendai-{job}",instance="a:1"{names}}}': values}


def _down(alert: str, job: str, summary: str, severity: str = "critical") -> Alert:
    return Alert(
        alert,
        f'up{{job="backendai-{job}"}} == 0',
        60,
        severity,
        summary,
        (
            Case(_up(job, "1x2 0x10"), "3m"),
            Case(_up(job, "1x2 0x10"), "5m", ({"job": f"backendai-{job}", "instance": "a:1"},)),
            Case(_up("other", "0x10"), "5m"),
        ),
    )


ALERTS = (
    _down("BackendAIManagerDown", "manager", "The manager {{ $labels.instance }} does not answer."),
    Alert(
        "BackendAINoLeader",
        "max(backendai_manager_leader_elected) == 0",
        60,
        "critical",
        "No manager leads: nothing is scheduled, started or ended.",
        (
            Case({'backendai_manager_leader_elected{instance="a:1"}': "0x10"}, "5m", ({},)),
            Case(
                {
                    'backendai_manager_leader_elected{instance="a:1"}': "0x10",
                    'backendai_manager_leader_elected{instance="b:1"}': "1x10",
                },
                "5m",
            ),
        ),
    ),
    Alert(
        "BackendAILoopStuck",
        "time() - max by (loop) (max_over_time(backendai_manager_loop_succeeded_timestamp_seconds[1h]))"
        " - max by (loop) (max_over_time(backendai_manager_loop_period_seconds[1h])) > 300"
        " and on () (max(backendai_manager_leader_elected) == 1)"
        ' and on () (min(up{job="backendai-manager"}) == 1)',
        60,
        "critical",
        "The loop {{ $labels.loop }} should have succeeded {{ $value | humanizeDuration }} ago.",
        (
            Case(
                {
                    'backendai_manager_loop_succeeded_timestamp_seconds{loop="ScheduleLoop"}': "0x20",
                    'backendai_manager_loop_period_seconds{loop="ScheduleLoop"}': "5x20",
                    'backendai_manager_loop_succeeded_timestamp_seconds{loop="IdleLoop"}': "0+60x20",
                    'backendai_manager_loop_period_seconds{loop="IdleLoop"}': "10x20",
                    'backendai_manager_loop_succeeded_timestamp_seconds{loop="RetentionLoop"}': "0x20",
                    'backendai_manager_loop_period_seconds{loop="RetentionLoop"}': "600x20",
                    "backendai_manager_leader_elected": "1x20",
                    **_up("manager", "1x20"),
                },
                "10m",
                ({"loop": "ScheduleLoop"},),
            ),
            Case(
                {
                    'backendai_manager_loop_succeeded_timestamp_seconds{loop="ScheduleLoop"}': "0x20",
                    'backendai_manager_loop_period_seconds{loop="ScheduleLoop"}': "5x20",
                    "backendai_manager_leader_elected": "1x20",
                    **_up("manager", "0x20"),
                },
                "10m",
                others=("BackendAIManagerDown",),
            ),
        ),
    ),
    Alert(
        "BackendAIAgentLost",
        'up{job="backendai-agent"} == 0 and on () (min(up{job="backendai-manager"}) == 1)',
        60,
        "critical",
        "The agent {{ $labels.agent }} does not report.",
        (
            Case(
                {**_up("agent", "0x10", agent="i-1"), **_up("manager", "1x10")},
                "5m",
                ({"job": "backendai-agent", "instance": "a:1", "agent": "i-1"},),
            ),
            Case(
                {**_up("agent", "0x10", agent="i-1"), **_up("manager", "0x10")}, "5m", others=("BackendAIManagerDown",)
            ),
        ),
    ),
    _down("BackendAIStorageProxyDown", "storage-proxy", "The storage proxy {{ $labels.name }} does not answer."),
    Alert(
        "BackendAIVolumeUnhealthy",
        "backendai_storage_proxy_volumes_unhealthy > 0",
        60,
        "critical",
        "{{ $value }} volumes of the storage proxy {{ $labels.name }} cannot be used.",
        (
            Case(
                {'backendai_storage_proxy_volumes_unhealthy{name="s"}': "0 1x9"},
                "5m",
                ({"name": "s"},),
            ),
            Case({'backendai_storage_proxy_volumes_unhealthy{name="s"}': "1 0x9"}, "5m"),
        ),
    ),
    _down(
        "BackendAICoordinatorDown",
        "app-proxy-coordinator",
        "The coordinator {{ $labels.instance }} of the app proxy does not answer: no app can be opened.",
    ),
    Alert(
        "BackendAIWorkerDown",
        'up{job="backendai-app-proxy-worker"} == 0 unless on () (min(up{job="backendai-app-proxy-coordinator"}) == 0)',
        60,
        "critical",
        "The worker {{ $labels.name }} of the app proxy does not answer: its apps cannot be reached.",
        (
            Case(
                {**_up("app-proxy-worker", "0x9", name="w"), **_up("app-proxy-coordinator", "1x9")},
                "5m",
                ({"job": "backendai-app-proxy-worker", "instance": "a:1", "name": "w"},),
            ),
            Case(
                {**_up("app-proxy-worker", "0x9", name="w"), **_up("app-proxy-coordinator", "0x9")},
                "5m",
                others=("BackendAICoordinatorDown",),
            ),
        ),
    ),
    Alert(
        "BackendAIServerErrors",
        "backendai:http_errors:ratio5m > 0.05 and on (job) sum by (job) (backendai:http_requests:rate5m) > 0.2",
        300,
        "warning",
        "{{ $value | humanizePercentage }} of the requests to {{ $labels.job }} fail on its side.",
        (
            Case(
                {
                    'backendai_manager_http_requests_total{job="backendai-manager",route="r",status="200"}': "0+60x30",
                    'backendai_manager_http_requests_total{job="backendai-manager",route="r",status="503"}': "0+60x30",
                },
                "20m",
                ({"job": "backendai-manager"},),
            ),
            Case(
                {
                    'backendai_manager_http_requests_total{job="backendai-manager",route="r",status="200"}': "0+60x30",
                    'backendai_manager_http_requests_total{job="backendai-manager",route="r",status="503"}': "0+1x30",
                    'backendai_manager_http_requests_total{job="backendai-manager",route="r",status="404"}': "0+60x30",
                },
                "20m",
            ),
        ),
    ),
    Alert(
        "BackendAISessionsFail",
        "backendai:sessions_failed:increase15m > 2",
        60,
        "warning",
        "{{ $value | humanize }} sessions failed within 15 minutes: {{ $labels.reason }}.",
        (
            Case(
                {
                    'backendai_manager_sessions_ended_total{reason="failed-to-create",status="ERROR"}': "0+1x30",
                    'backendai_manager_sessions_ended_total{reason="user-requested",status="TERMINATED"}': "0+9x30",
                },
                "20m",
                ({"reason": "failed-to-create"},),
            ),
            Case({'backendai_manager_sessions_ended_total{reason="failed-to-start",status="ERROR"}': "5x30"}, "20m"),
        ),
    ),
    Alert(
        "BackendAISessionsWait",
        "max(backendai_manager_sessions_oldest_pending_seconds) > 3600",
        300,
        "warning",
        "A session has been waiting for {{ $value | humanizeDuration }}.",
        (
            Case({"backendai_manager_sessions_oldest_pending_seconds": "3500+60x20"}, "15m", ({},)),
            Case({"backendai_manager_sessions_oldest_pending_seconds": "0+60x20"}, "15m"),
        ),
    ),
    Alert(
        "BackendAINodeDiskFull",
        "max by (agent, device_id) (backendai:node_disk:ratio) > 0.9",
        300,
        "warning",
        "The disk {{ $labels.device_id }} of the agent {{ $labels.agent }} is {{ $value | humanizePercentage }} full.",
        (
            Case(
                {
                    'backendai_device_disk_bytes{agent="i-1",device_id="data"}': "95x20",
                    'backendai_device_disk_capacity_bytes{agent="i-1",device_id="data"}': "100x20",
                    'backendai_device_disk_bytes{agent="i-1",device_id="vda"}': "50x20",
                    'backendai_device_disk_capacity_bytes{agent="i-1",device_id="vda"}': "9000x20",
                    'backendai_device_disk_bytes{agent="i-2",device_id="data"}': "50x20",
                    'backendai_device_disk_capacity_bytes{agent="i-2",device_id="data"}': "100x20",
                },
                "15m",
                ({"agent": "i-1", "device_id": "data"},),
            ),
        ),
    ),
    Alert(
        "BackendAICertificateExpires",
        'min by (job, instance) ({__name__=~"backendai_.+_tls_expiry_timestamp_seconds"}) - time() < 1209600',
        300,
        "warning",
        "The certificate of {{ $labels.job }} at {{ $labels.instance }} expires in {{ $value | humanizeDuration }}.",
        (
            Case(
                {
                    'backendai_storage_proxy_tls_expiry_timestamp_seconds{job="s",instance="a:1"}': "9999999x20",
                    'backendai_storage_proxy_client_tls_expiry_timestamp_seconds{job="s",instance="a:1"}': "1209600x20",
                    'backendai_manager_tls_expiry_timestamp_seconds{job="m",instance="b:1"}': "9999999x20",
                },
                "15m",
                ({"job": "s", "instance": "a:1"},),
            ),
        ),
    ),
    Alert(
        "BackendAIConfigurationStale",
        "max(backendai_manager_shared_configuration_stale_seconds) > 60",
        60,
        "warning",
        "etcd has not answered for {{ $value | humanizeDuration }}: the managers go on with what they have read.",
        (
            Case({"backendai_manager_shared_configuration_stale_seconds": "0+60x20"}, "5m", ({},)),
            Case({"backendai_manager_shared_configuration_stale_seconds": "5x20"}, "5m"),
        ),
    ),
)


def rules_document(*, lasts: int | None = None, annotated: bool = True) -> dict[str, Any]:
    """Return the file of rules; ``lasts`` replaces how long each condition holds before its alert fires, for tests."""
    alerts = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": f"{alert.lasts if lasts is None else lasts}s",
            "labels": {"severity": alert.severity},
            **({"annotations": {"summary": alert.summary, "runbook_url": alert.runbook}} if annotated else {}),
        }
        for alert in ALERTS
    ]
    return {
        "groups": [
            {"name": "backendai-recordings", "rules": [{"record": r.record, "expr": r.expr} for r in RECORDINGS]},
            {"name": "backendai-alerts", "rules": alerts},
        ]
    }


def cases_document(rules_file: str) -> dict[str, Any]:
    """Return the cases of all rules for `promtool test rules`. Each case of an alert also says of all other alerts that
    they do not fire."""
    of_recordings = [_recorded(rule, case) for rule in RECORDINGS for case in rule.cases]
    of_alerts = [_test(alert, number, case) for alert in ALERTS for number, case in enumerate(alert.cases)]
    return {"rule_files": [rules_file], "evaluation_interval": "30s", "tests": [*of_recordings, *of_alerts]}


def _recorded(rule: Recording, case: RecordingCase) -> dict[str, Any]:
    samples = [{"labels": f"{rule.record}{{{labels}}}", "value": value} for labels, value in case.samples.items()]
    return {
        "name": rule.record,
        "interval": "1m",
        "input_series": _series(case.series),
        "promql_expr_test": [{"expr": rule.record, "eval_time": case.at, "exp_samples": samples}],
    }


def _series(series: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]


def _test(alert: Alert, number: int, case: Case) -> dict[str, Any]:
    def expected(other: Alert) -> dict[str, Any]:
        own = {"alertname": other.name, "eval_time": case.at}
        if other.name != alert.name or not case.fires:
            return own
        labels = [{"severity": alert.severity, **fired} for fired in case.fires]
        return {**own, "exp_alerts": [{"exp_labels": fired} for fired in labels]}

    return {
        "name": f"{alert.name} {number}",
        "interval": "1m",
        "input_series": _series(case.series),
        "alert_rule_test": [expected(other) for other in ALERTS if other.name not in case.others],
    }
