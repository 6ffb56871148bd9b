"""Starts the services of a workload on request, watches them, and ends them with the session.

A service counts as running once its first port listens at 127.0.0.1, to which the tunnels connect.
"""

from __future__ import annotations

import os
import signal
import time

from . import process
from .event_loop import READ
from .service_builtins import INTRINSIC, builtin_definition, offered_definition
from .service_definitions import BadDefinition, Definition, is_name, read_definition
from .service_launch import Launch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set

    from .event_loop import Loop, Timer
    from .framing import Outbox

    Message = Dict[str, Any]

MAX_SERVICES = 64
START_TIMEOUT_S = 30.0
PASSIVE_TIMEOUT_S = 5.0
"""The timeout in seconds for a service that others start (spec 03-08, "Service Proxies")."""
STOP_GRACE_S = 5.0
_LOOK_FIRST_S, _LOOK_MAX_S = 0.02, 0.25
_TAIL = 2_000
_LISTENING = "0A"


class Service:
    """One service that was started at least once. `status` is `starting running stopped failed`."""

    def __init__(self, name: str, protocol: str) -> None:
        self.name = name
        self.protocol = protocol
        self.ports: List[int] = []
        self.status = "stopped"
        self.reason: Optional[str] = None
        self.pid = 0
        self.group = 0
        self.tail = b""
        self.trouble = b""
        self.deadline = 0.0
        self.is_stopping = False
        self.starting: List[Message] = []
        self.stopping: List[Message] = []
        self.timer: Optional[Timer] = None
        self.kill_timer: Optional[Timer] = None


class Services:
    """The services of the workload; `log` takes (stream, bytes)."""

    def __init__(
        self,
        loop: Loop,
        home: str,
        runtime: str,
        definitions: str,
        outbox: Outbox,
        log: Callable[[str, bytes], None],
    ) -> None:
        self._loop = loop
        self._home = home
        self._runtime = runtime
        self._definitions = definitions
        self._outbox = outbox
        self._log = log
        self._services: Dict[str, Service] = {}
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    # ---- requests

    def start(self, message: Message) -> None:
        """Handles `service-start`: replies when the service listens or has failed."""
        name, protocol, ports = _declaration(message)
        try:
            definition = self._definition(name, message)
            service = self._services.get(name)
            if service is not None and service.status == "starting" and not service.is_stopping:
                service.starting.append(message)
                return
            if definition is None or definition.noop:
                if protocol not in ("preopen", "internal") and definition is None:
                    self._outbox.refuse(message, "not-found", f"nothing says how the service {name} is started")
                    return
                patience = min(_timeout(message), PASSIVE_TIMEOUT_S)
                self._await_other(message, definition, time.monotonic() + patience, _LOOK_FIRST_S)
                return
            if service is not None and self._is_up(service):
                self._outbox.reply(message, self._state(service, definition))
                return
            if service is not None and service.pid:
                self._outbox.refuse(message, "failed", f"the service {name} is being ended: try again")
                return
            self._begin(name, protocol, ports, definition, message)
        except BadDefinition as e:
            self._outbox.refuse(message, "invalid", f"{name}: {e}")

    def _await_other(self, message: Message, definition: Optional[Definition], deadline: float, delay_s: float) -> None:
        """Replies when a service that others start listens, or at the timeout."""
        name, protocol, ports = _declaration(message)
        state = self._passive(name, protocol, ports, definition)
        if state["status"] == "running" or time.monotonic() > deadline:
            self._outbox.reply(message, state)
            return
        longer = min(2 * delay_s, _LOOK_MAX_S)
        self._loop.call_later(delay_s, lambda: self._await_other(message, definition, deadline, longer))

    def stop(self, message: Message) -> None:
        """Handles `service-stop`: replies when the process has ended."""
        name = message["name"]
        service = self._services.get(name) if is_name(name) else None
        if service is None or not service.pid:
            if service is not None and service.group and not service.is_stopping:
                process.kill_group(service.group, signal.SIGTERM)  # it went to the background
                self._ended(service, "stopped", None)
            self._outbox.reply(message, {})
            return
        service.stopping.append(message)
        if service.is_stopping:
            return
        service.is_stopping = True
        process.kill_group(service.pid, signal.SIGTERM)
        service.kill_timer = self._loop.call_later(STOP_GRACE_S, lambda: self._kill(service))

    def list(self, message: Message) -> None:
        """Handles `service-list`: returns the state of each of the declared `services`."""
        states = []
        for item in message["services"][:MAX_SERVICES]:
            name, protocol, ports = _declaration(item)
            service = self._services.get(name)
            try:
                definition = self._definition(name, {**message, **item})
            except BadDefinition as e:
                states.append({"name": name, "protocol": protocol, "status": "failed", "reason": str(e), "ports": []})
                continue
            if service is None and (definition is None or definition.noop):
                states.append(self._passive(name, protocol, ports, definition))
                continue
            service = service or Service(name, protocol)
            self._is_up(service)
            states.append(self._state(service, definition))
        self._outbox.reply(message, {"services": states})

    def _definition(self, name: str, message: Message) -> Optional[Definition]:
        found = read_definition(name, self._definitions)
        if found is not None:
            return found
        kit = message.get("kit")
        if not kit and message.get("t") == "service-list" and name in INTRINSIC:
            return offered_definition(name)
        paths = [str(message.get(key) or "") for key in ("runtime_path", "service_path")]
        return builtin_definition(name, self._runtime, kit if isinstance(kit, str) else None, *paths)

    # ---- a start

    def _begin(self, name: str, protocol: str, ports: List[int], definition: Definition, message: Message) -> None:
        if len(self._services) >= MAX_SERVICES and name not in self._services:
            raise BadDefinition(f"more than {MAX_SERVICES} services")
        shared = message.get("shared") is True
        if shared:
            ports = _free_ports(len(ports))
        variables = {
            "ports": ports,
            "runtime_path": str(message.get("runtime_path") or ""),
            "host": str(message.get("host") or "127.0.0.1"),
            "home": self._home,
        }
        arguments = definition.arguments(message.get("arguments"))
        launch = Launch(name, definition, variables, self._home, arguments, definition.environment(message.get("envs")))
        if not shared and ports and ports[0] in _listening():
            raise BadDefinition(f"something else listens on port {ports[0]} already")
        service = self._services[name] = Service(name, protocol)
        service.ports, service.status, service.starting = ports, "starting", [message]
        service.deadline = time.monotonic() + _timeout(message)
        output, output_write = os.pipe()
        trouble, trouble_write = os.pipe()
        try:
            service.pid = service.group = launch.fork(self._null, output_write, trouble_write)
        except OSError as e:
            for fd in (output, trouble):
                os.close(fd)
            self._fail(service, f"no process can be made: {e}")
            return
        finally:
            os.close(output_write)
            os.close(trouble_write)
        for fd in (output, trouble):
            os.set_blocking(fd, False)
        self._loop.watch(output, READ, lambda _e: self._on_output(service, output, is_trouble=False))
        self._loop.watch(trouble, READ, lambda _e: self._on_output(service, trouble, is_trouble=True))
        self._await_port(service, _LOOK_FIRST_S)

    def _await_port(self, service: Service, delay_s: float) -> None:
        """Checks the port repeatedly until it listens or the time is over."""
        if service.status != "starting":
            return
        if not service.ports or service.ports[0] in _listening():
            service.status = "running"
            waiting, service.starting = service.starting, []
            for message in waiting:
                try:
                    self._outbox.reply(message, self._state(service, self._definition(service.name, message)))
                except BadDefinition as e:
                    self._outbox.refuse(message, "invalid", str(e))
            return
        if time.monotonic() > service.deadline:
            self._fail(service, f"it does not listen on port {service.ports[0]}")
            service.is_stopping = service.is_stopping or bool(service.pid)
            self._kill(service)
            return
        longer = min(2 * delay_s, _LOOK_MAX_S)
        service.timer = self._loop.call_later(delay_s, lambda: self._await_port(service, longer))

    def _fail(self, service: Service, reason: str) -> None:
        tail = service.tail.decode("utf-8", "replace").strip()
        service.status, service.reason = "failed", reason
        waiting, service.starting = service.starting, []
        text = f"the service {service.name} could not be started: {reason}" + (f"\n{tail}" if tail else "")
        for message in waiting:
            self._outbox.refuse(message, "failed", text)

    # ---- output and end

    def _on_output(self, service: Service, fd: int, is_trouble: bool) -> None:
        try:
            data = os.read(fd, 65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.unwatch(fd)
            os.close(fd)
        elif is_trouble:
            service.trouble += data
        else:
            service.tail = (service.tail + data)[-_TAIL:]
            self._log("stdout", data)

    def child_died(self, pid: int, status: int) -> bool:
        """Handles the end of a service; returns False if `pid` is none of its processes."""
        service = next((one for one in self._services.values() if one.pid == pid), None)
        if service is None:
            return False
        service.pid = 0
        for timer in (service.kill_timer, None if service.status == "starting" else service.timer):
            if timer is not None:
                timer.cancel()
        code, number = process.exit_of(status)
        was = service.status
        if service.is_stopping:
            self._ended(service, "stopped" if was != "failed" else "failed", service.reason)
        elif was != "starting":
            reason = f"it ended with {process.signal_name(number) if number else f'exit code {code}'}"
            self._ended(service, "stopped" if code == 0 else "failed", reason)
            self._outbox.send({"t": "service-ended", "name": service.name, "exitCode": code, "signal": number})
            self._outbox.warn(f"the service {service.name} has ended: {reason}")
        elif code != 0:  # else it went to the background: its port tells the rest
            reason = f"it ended with {process.signal_name(number) if number else f'exit code {code}'}"
            service.is_stopping = True
            # Its last output is in its pipes still.
            self._loop.call_later(
                _LOOK_FIRST_S, lambda: self._fail(service, service.trouble.decode("utf-8", "replace") or reason)
            )
        return True

    def _ended(self, service: Service, status: str, reason: Optional[str]) -> None:
        if service.starting:
            self._fail(service, "it was stopped")
        if service.timer is not None:
            service.timer.cancel()
        service.status, service.reason, service.ports, service.group = status, reason, [], 0
        service.is_stopping = False
        waiting, service.stopping = service.stopping, []
        for message in waiting:
            self._outbox.reply(message, {})

    @staticmethod
    def _kill(service: Service) -> None:
        if service.pid:
            process.kill_group(service.pid, signal.SIGKILL)

    def end_all(self) -> None:
        """Ends every service; the workload ends with them."""
        for service in self._services.values():
            if service.group:
                process.kill_group(service.group, signal.SIGKILL)

    # ---- states

    def _is_up(self, service: Service) -> bool:
        """Returns True if the service runs; a service in the background is detected by its port only."""
        if service.status != "running" or service.is_stopping:
            return False
        if not service.pid and service.ports and service.ports[0] not in _listening():
            service.status, service.reason, service.ports, service.group = "stopped", None, [], 0
            return False
        return True

    @staticmethod
    def _state(service: Service, definition: Optional[Definition]) -> Message:
        is_up = service.status == "running"
        return {
            "name": service.name,
            "protocol": service.protocol,
            "status": service.status,
            "ports": service.ports if is_up else [],
            "reason": service.reason,
            **_offer(definition),
        }

    @staticmethod
    def _passive(name: str, protocol: str, ports: List[int], definition: Optional[Definition]) -> Message:
        """Describes a service that the user or the image starts, which runs while its port listens."""
        is_up = bool(ports) and ports[0] in _listening()
        status = "running" if is_up else "stopped"
        return {"name": name, "protocol": protocol, "status": status, "ports": ports, **_offer(definition)}


def _offer(definition: Optional[Definition]) -> Message:
    if definition is None:
        return {}
    return {
        "url_template": definition.url_template,
        "allowed_arguments": definition.allowed_arguments,
        "allowed_envs": definition.allowed_envs,
    }


def _timeout(message: Message) -> float:
    timeout = message.get("timeout")
    return float(timeout) if isinstance(timeout, (int, float)) and 0 < timeout <= 600 else START_TIMEOUT_S


def _declaration(message: Message) -> Any:
    name, protocol, ports = message["name"], message["protocol"], message["ports"]
    if not is_name(name) or not isinstance(protocol, str):
        raise ValueError("a service has a name and a protocol")
    if not isinstance(ports, list) or not all(isinstance(port, int) and 0 < port < 65_536 for port in ports):
        raise ValueError("ports are numbers from 1 to 65535")
    return name, protocol, ports


def _free_ports(count: int) -> List[int]:
    """Returns unused ports of 127.0.0.1."""
    import socket

    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _listening() -> Set[int]:
    """Returns the listening TCP ports of this network namespace, read from /proc without connecting."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue  # no such protocol here
        for line in lines:
            _, local, _, state = line.split(None, 4)[:4]
            if state == _LISTENING:
                found.add(int(local.rpartition(":")[2], 16))
    return found
