"""A pytest plugin: declared needs, and no silent skips where CI=true.

A test that needs something from the machine says so: `@pytest.mark.needs("bwrap", "cgroups")`. What is missing
makes a skip whose reason begins with its kind:

* `binary:`     a program that a package brings. Where CI=true this is a failure: install it.
* `machine:`    a property of kernel, container or user (root, cgroups ...). Accepted in CI.
* `capability:` raised by contract suites where an implementation declares that it cannot do a thing. Accepted in CI.

Every other skip is undeclared, and fails where CI=true.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path

import pytest

from tests.support import collector, docker_engine, kubernetes, openstack_cloud, postgres, wheels
from tests.support.quota_disk import why_no_quota_disk

ACCEPTED_IN_CI = ("machine:", "capability:")


def is_ci() -> bool:
    return os.environ.get("CI", "").lower() in {"1", "true"}


def is_declared(reason: str) -> bool:
    """Say whether CI accepts a skip with this reason."""
    return reason.removeprefix("Skipped: ").startswith(ACCEPTED_IN_CI)


def _program(name: str, package: str) -> Callable[[], str | None]:
    def probe() -> str | None:
        return None if shutil.which(name) else f"binary: {name} is not installed (package {package})"

    return probe


def _language(name: str) -> Callable[[], str | None]:
    """A heavy package of another language, which CI may lack."""
    return lambda: None if shutil.which(name) else f"machine: {name} is not installed"


def _root() -> str | None:
    return None if os.geteuid() == 0 else "machine: not running as root"


def _user_namespaces() -> str | None:
    """Probe by doing: bubblewrap must be able to start `true` in namespaces of its own."""
    missing = _program("bwrap", "bubblewrap")()
    if missing:
        return missing
    command = ["bwrap", "--unshare-pid", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return None if done.returncode == 0 else f"machine: bubblewrap cannot isolate here: {done.stderr.strip()[:200]}"


def _egress() -> str | None:
    """Probe by doing: slirp4netns or pasta must be able to give a network a way out."""
    from ai.backend.runtime.process.egress import find_helpers
    from ai.backend.runtime.process.settings import ProcessRuntimeSettings

    helpers, reason = find_helpers(ProcessRuntimeSettings())
    return None if helpers else f"machine: sessions have no network with a way out here: {reason}"


def _cgroups() -> str | None:
    """Probe by doing: make and remove one group, in the unified or in the memory hierarchy."""
    for parent in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
        probe = parent / f"backendai-probe-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError:
            continue
        has_memory = any(probe.glob("memory.*"))
        probe.rmdir()
        if has_memory:
            return None
    return "machine: no cgroup hierarchy with a memory controller is writable"


def _nvidia() -> str | None:
    """Probe by doing: the library loads and sees a device."""
    command = ["nvidia-smi", "--list-gpus"]
    if shutil.which(command[0]) is None:
        return "machine: no NVIDIA driver here"
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = done.returncode == 0 and "GPU" in done.stdout
    return None if found else f"machine: no usable NVIDIA GPU: {(done.stdout + done.stderr).strip()[:200]}"


def _xfs() -> str | None:
    """Root, the program that makes the file system, and a kernel that mounts it with project quotas."""
    return _root() or _program("mkfs.xfs", "xfsprogs")() or why_no_quota_disk()


PROBES: dict[str, Callable[[], str | None]] = {
    "bwrap": _program("bwrap", "bubblewrap"),
    "gcc": _program("gcc", "gcc"),
    "node": _language("node"),
    "jshell": _language("jshell"),
    "go": _language("go"),
    "R": _language("R"),
    "ssh": _program("ssh", "openssh-client"),
    "chromium": _program("chromium", "chromium"),
    "git": _program("git", "git"),
    "ip": _program("ip", "iproute2"),
    "root": _root,
    "isolation": _user_namespaces,
    "egress": _egress,
    "cgroups": _cgroups,
    "nvidia": _nvidia,
    "docker": docker_engine.why_not,
    "cdi-engine": docker_engine.why_no_cdi_engine,
    "crun": _program("crun", "crun"),
    "registry": _program("docker-registry", "docker-registry"),
    "gvisor": kubernetes.why_no_gvisor,
    "kubernetes": kubernetes.why_not,
    "postgres": postgres.why_not,
    "haproxy": _program("haproxy", "haproxy"),
    "redis": _program("redis-server", "redis-server"),
    "etcd": _program("etcd", "etcd-server"),
    "slapd": _program("slapd", "slapd"),
    "collector": collector.why_not,
    "cyborg": openstack_cloud.why_not,
    "prometheus": _program("prometheus", "prometheus"),
    "alertmanager": _program("prometheus-alertmanager", "prometheus-alertmanager"),
    "xfs": _xfs,
    "minilm": wheels.why_no_model,
    "traefik": wheels.why_no_traefik,
    "matplotlib": wheels.why_no_matplotlib,
    "uvloop": wheels.why_no_uvloop,
}


@cache
def missing(name: str) -> str | None:
    """Return why `name` is not available on this machine, or None when it is.

    Raises:
        pytest.UsageError: nobody knows how to probe for `name`.
    """
    if name not in PROBES:
        raise pytest.UsageError(f"needs({name!r}): unknown need, known are {sorted(PROBES)}")
    return PROBES[name]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            reason = missing(name)
            if reason is not None:
                pytest.skip(reason)


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _fail_if_undeclared(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not is_ci() or report.outcome != "skipped" or hasattr(report, "wasxfail") or is_declared(_reason(report)):
        return
    reason = _reason(report)
    report.outcome = "failed"
    report.longrepr = f"undeclared skip where CI=true: {reason}\n(see tests/support/skips.py)"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_undeclared(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_undeclared(report)
    return report
