"""A small OpenStack for tests: the real Cyborg 17 and Placement 16, with stand-ins of Keystone, Glance and Nova.

Cyborg and Placement are installed once into an environment of their own in the user's cache.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.cluster import free_port
from tests.support.openstack_standins import PROJECT, StandIns, standing_in

VERSIONS = {"openstack-cyborg": "17.0.0", "openstack-placement": "16.0.0"}
HOST = "compute1"
_PROGRAM = Path(__file__).with_name("openstack_services.py")
_INSTALL_S, _START_S = 900.0, 240.0
_AUTH = """
auth_type = password
auth_url = {identity}
username = cyborg
password = services
project_name = machines
user_domain_name = Default
project_domain_name = Default
"""
_CYBORG = """
[DEFAULT]
host = {host}
transport_url = fake:/
state_path = {folder}
periodic_interval = 5
[database]
connection = sqlite:///{folder}/cyborg.db
[api]
api_paste_config = {paste}
[agent]
enabled_drivers = fake_driver
resource_provider_name = {host}
resource_provider_startup_retries = 0
[oslo_concurrency]
lock_path = {folder}
[keystone_authtoken]
www_authenticate_uri = {identity}
service_token_roles = service
service_token_roles_required = true
token_cache_time = -1
{auth}
[placement]
region_name = one
{auth}
[nova]
region_name = one
{auth}
[glance]
region_name = one
{auth}
[service_user]
{auth}
"""
_PLACEMENT = """
[placement_database]
connection = sqlite:///{folder}/placement.db
[api]
auth_strategy = keystone
[keystone_authtoken]
www_authenticate_uri = {identity}
token_cache_time = -1
{auth}
"""


@cache
def environment() -> Path:
    """Returns the interpreter of the environment of Cyborg, which the first call installs. Raises RuntimeError."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "backend.ai" / "cyborg"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = "-".join([f"py{python}", *(f"{package}-{version}" for package, version in VERSIONS.items())])
    folder = cached / name
    cached.mkdir(parents=True, exist_ok=True)
    with (cached / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "installed").exists():
            shutil.rmtree(folder, ignore_errors=True)
            packages = [f"{package}=={version}" for package, version in VERSIONS.items()]
            try:
                venv.create(folder, with_pip=True)
                command = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *packages]
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
            except (OSError, subprocess.SubprocessError) as e:
                shutil.rmtree(folder, ignore_errors=True)
                detail = (getattr(e, "stderr", None) or str(e)).strip().splitlines()
                raise RuntimeError(f"Cyborg cannot be installed: {detail[-1] if detail else e}") from None
            (folder / "installed").touch()
    return folder / "bin" / "python"


def why_not() -> str | None:
    """Returns why Cyborg cannot run here, None if it can."""
    try:
        environment()
    except RuntimeError as e:
        return f"binary: {e}"
    return None


class Cloud:
    """The services and stand-ins; ``kill`` and ``start`` act on Cyborg and Placement, whose state stays."""

    def __init__(self, folder: Path, stand_ins: StandIns) -> None:
        self.folder, self.stand_ins = folder, stand_ins
        stand_ins.cyborg_port, stand_ins.placement_port = free_port(), free_port()
        interpreter = environment()
        paste = interpreter.parents[1] / "etc" / "cyborg" / "api-paste.ini"
        names = {
            "folder": folder,
            "host": HOST,
            "paste": paste,
            "identity": f"{stand_ins.url}/identity/v3",
            "auth": _AUTH.format(identity=f"{stand_ins.url}/identity/v3"),
        }
        (folder / "cyborg.conf").write_text(_CYBORG.format(**names))
        (folder / "placement.conf").write_text(_PLACEMENT.format(**names))
        self._command = [str(interpreter), str(_PROGRAM), str(folder)]
        self._command += [str(stand_ins.placement_port), str(stand_ins.cyborg_port)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once Cyborg has reported its device to Placement."""
        (self.folder / "ready").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        deadline, has_root = time.monotonic() + _START_S, False
        while not ((self.folder / "ready").exists() and self._is_discovered()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Cyborg did not start: {(self.folder / 'log').read_text()[-3000:]}")
            has_root = has_root or self._make_root_provider()
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None

    def _make_root_provider(self) -> bool:
        """Adds the provider of the compute host, as Nova does."""
        try:
            self.placement("POST", "/resource_providers", {"name": HOST})
        except urllib.error.HTTPError as e:
            return e.code == 409
        except OSError:
            return False
        return True

    def _is_discovered(self) -> bool:
        try:
            deployables = self.cyborg("GET", "/deployables")["deployables"]
            provider = deployables[0]["rp_uuid"] if deployables else None
            return bool(
                provider and self.placement("GET", f"/resource_providers/{provider}/inventories")["inventories"]
            )
        except OSError:
            return False

    def _call(self, base: str, method: str, path: str, body: Any = None, version: str = "") -> Any:
        token = "harness"
        self.stand_ins.tokens[token] = "kube-acc"
        headers = {"X-Auth-Token": token, "X-Service-Token": token, "Content-Type": "application/json"}
        headers["OpenStack-API-Version"] = version
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{base}{path}", content, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def cyborg(self, method: str, path: str, body: Any = None) -> Any:
        """Calls the real Cyborg beside the gate of the stand-ins. Raises OSError, HTTPError."""
        base = f"http://127.0.0.1:{self.stand_ins.cyborg_port}/v2"
        return self._call(base, method, path, body, "accelerator 2.3")

    def placement(self, method: str, path: str, body: Any = None) -> Any:
        base = f"http://127.0.0.1:{self.stand_ins.placement_port}"
        return self._call(base, method, path, body, "placement 1.38")

    def requests(self) -> list[dict[str, Any]]:
        """Returns the accelerator requests that Cyborg has."""
        arqs: list[dict[str, Any]] = self.cyborg("GET", "/accelerator_requests")["arqs"]
        return arqs

    def used(self) -> int:
        """Returns how many accelerators Placement has given away."""
        provider = self.cyborg("GET", "/deployables")["deployables"][0]["rp_uuid"]
        return sum(self.placement("GET", f"/resource_providers/{provider}/usages")["usages"].values())


@contextmanager
def running_cloud(folder: Path) -> Iterator[Cloud]:
    """Runs the cloud until the end of the block, with one FPGA of 16 accelerators at :data:`HOST`."""
    with standing_in() as stand_ins:
        cloud = Cloud(folder, stand_ins)
        try:
            cloud.start()
            yield cloud
        finally:
            cloud.kill()


__all__ = ["HOST", "PROJECT", "Cloud", "environment", "running_cloud", "why_not"]
