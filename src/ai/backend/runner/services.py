"""Starts the services of a workload on request, watches them, and ends them with the session.

A service counts as running once its first port listens at 127.0.0.1, to which the tunnels connect.
"""

from __future__ import annotations

import os
import signal
import time

from . import process
from .event_loop import READ_EVENTS
from .service_builtins import INTRINSIC_URL_TEMPLATES, builtin_definition, offered_definition
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
_FIRST_PORT_CHECK_S, _MAX_PORT_CHECK_S = 0.02, 0.25
_OUTPUT_TAIL_BYTES = 2_000
_TCP_STATE_LISTEN = "0A"


class Service:
    """Holds the state of one service, such as its ports, process and status.

    The service was started once or more. `status` is `starting running stopped failed`.
    """

    def __init__(self, name: str, protocol: str) -> None:
        self.name = name
        self.protocol = protocol
        self.ports: List[int] = []
        self.socket_path = ""
        self.status = "stopped"
        self.reason: Optional[str] = None
        self.pid = 0
        self.group = 0
        self.output_tail = b""
        self.failure_text = b""
        self.deadline = 0.0
        self.is_stopping = False
        self.start_requests: List[Message] = []
        self.stop_requests: List[Message] = []
        self.timer: Optional[Timer] = None
        self.kill_timer: Optional[Timer] = None


class Services:
    """Starts, describes and ends the workload's services; `write_log` takes (stream, bytes)."""

    def __init__(
        self,
        loop: Loop,
        home: str,
        runtime: str,
        definitions_folder: str,
        outbox: Outbox,
        write_log: Callable[[str, bytes], None],
    ) -> None:
        self._loop = loop
        self._home = home
        self._runtime = runtime
        self._definitions = definitions_folder
        self._outbox = outbox
        self._log = write_log
        self._services: Dict[str, Service] = {}
        self._null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    # ---- requests

    def start(self, request: Message) -> None:
        """Handles `service-start`: replies when the service listens or has failed."""
        name, protocol, ports = _parse_declaration(request)
        try:
            definition = self._find_definition(name, request)
            service = self._services.get(name)
            if service is not None and service.status == "starting" and not service.is_stopping:
                service.start_requests.append(request)
                return
            if definition is None or definition.noop:
                if protocol not in ("preopen", "internal") and definition is None:
                    self._outbox.refuse(request, "not-found", f"nothing says how the service {name} is started")
                    return
                timeout_s = min(_start_timeout_s(request), PASSIVE_TIMEOUT_S)
                self._await_passive_service(request, definition, time.monotonic() + timeout_s, _FIRST_PORT_CHECK_S)
                return
            if service is not None and self._is_up(service):
                self._outbox.reply(request, self._describe_service(service, definition))
                return
            if service is not None and service.pid:
                self._outbox.refuse(request, "failed", f"the service {name} is being ended: try again")
                return
            self._launch(name, protocol, ports, definition, request)
        except BadDefinition as e:
            self._outbox.refuse(request, "invalid", f"{name}: {e}")

    def _await_passive_service(
        self, request: Message, definition: Optional[Definition], deadline: float, delay_s: float
    ) -> None:
        """Replies when a service that the user or the image starts listens on its port, or at the timeout."""
        name, protocol, ports = _parse_declaration(request)
        service_state = self._describe_passive(name, protocol, ports, definition)
        if service_state["status"] == "running" or time.monotonic() > deadline:
            self._outbox.reply(request, service_state)
            return
        next_delay_s = min(2 * delay_s, _MAX_PORT_CHECK_S)
        self._loop.call_later(delay_s, lambda: self._await_passive_service(request, definition, deadline, next_delay_s))

    def stop(self, request: Message) -> None:
        """Handles `service-stop`: replies when the process has ended."""
        name = request["name"]
        service = self._services.get(name) if is_name(name) else None
        if service is None or not service.pid:
            if service is not None and service.group and not service.is_stopping:
                process.kill_group(service.group, signal.SIGTERM)  # it went to the background
                self._mark_ended(service, "stopped", None)
            self._outbox.reply(request, {})
            return
        service.stop_requests.append(request)
        if service.is_stopping:
            return
        service.is_stopping = True
        process.kill_group(service.pid, signal.SIGTERM)
        service.kill_timer = self._loop.call_later(STOP_GRACE_S, lambda: self._kill_service(service))

    def list(self, request: Message) -> None:
        """Handles `service-list`: returns the state of each of the declared `services`."""
        states = []
        for declaration in request["services"][:MAX_SERVICES]:
            name, protocol, ports = _parse_declaration(declaration)
            service = self._services.get(name)
            try:
                definition = self._find_definition(name, {**request, **declaration})
            except BadDefinition as e:
                states.append({"name": name, "protocol": protocol, "status": "failed", "reason": str(e), "ports": []})
                continue
            if service is None and (definition is None or definition.noop):
                states.append(self._describe_passive(name, protocol, ports, definition))
                continue
            service = service or Service(name, protocol)
            self._is_up(service)
            states.append(self._describe_service(service, definition))
        self._outbox.reply(request, {"services": states})

    def _find_definition(self, name: str, request: Message) -> Optional[Definition]:
        definition = read_definition(name, self._definitions)
        if definition is not None:
            return definition
        kit_path = request.get("kit")
        if not kit_path and request.get("t") == "service-list" and name in INTRINSIC_URL_TEMPLATES:
            return offered_definition(name)
        interpreter_paths = [str(request.get(field_name) or "") for field_name in ("runtime_path", "service_path")]
        return builtin_definition(
            name, self._runtime, kit_path if isinstance(kit_path, str) else None, *interpreter_paths
        )

    # ---- a start

    def _launch(self, name: str, protocol: str, ports: List[int], definition: Definition, request: Message) -> None:
        if len(self._services) >= MAX_SERVICES and name not in self._services:
            raise BadDefinition(f"more than {MAX_SERVICES} services")
        is_network_shared = request.get("shared") is True
        socket_path = self._prepare_socket(request, ports)
        if is_network_shared and not socket_path:
            ports = _free_ports(len(ports))
        variables = {
            "ports": ports,
            "runtime_path": str(request.get("runtime_path") or ""),
            "host": f"unix:{socket_path}" if socket_path else str(request.get("host") or "127.0.0.1"),
            "home": self._home,
        }
        arguments = definition.arguments(request.get("arguments"))
        launch = Launch(name, definition, variables, self._home, arguments, definition.environment(request.get("envs")))
        if not is_network_shared and ports and ports[0] in _listening_ports():
            raise BadDefinition(f"something else listens on port {ports[0]} already")
        service = self._services[name] = Service(name, protocol)
        service.ports, service.status, service.start_requests = ports, "starting", [request]
        service.socket_path = socket_path
        service.deadline = time.monotonic() + _start_timeout_s(request)
        output_fd, output_write_fd = os.pipe()
        reason_fd, reason_write_fd = os.pipe()
        try:
            service.pid = service.group = launch.fork(self._null, output_write_fd, reason_write_fd)
        except OSError as e:
            for fd in (output_fd, reason_fd):
                os.close(fd)
            self._fail_start(service, f"no process can be made: {e}")
            return
        finally:
            os.close(output_write_fd)
            os.close(reason_write_fd)
        for fd in (output_fd, reason_fd):
            os.set_blocking(fd, False)
        self._loop.watch(output_fd, READ_EVENTS, lambda _events: self._on_output(service, output_fd, is_reason=False))
        self._loop.watch(reason_fd, READ_EVENTS, lambda _events: self._on_output(service, reason_fd, is_reason=True))
        self._await_port(service, _FIRST_PORT_CHECK_S)

    def _prepare_socket(self, request: Message, ports: List[int]) -> str:
        """Returns the path of the unix socket on which a service must listen, after making the socket's folder.

        Returns an empty text for a service that listens on its port.
        """
        folder_name = request.get("sockets")
        if not isinstance(folder_name, str) or not folder_name or not ports:
            return ""
        folder = os.path.join(self._home, folder_name)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        socket_path = os.path.join(folder, str(ports[0]))
        if os.path.lexists(socket_path):
            os.unlink(socket_path)
        return socket_path

    def _await_port(self, service: Service, delay_s: float) -> None:
        """Checks repeatedly until the service listens on its port or the start times out."""
        if service.status != "starting":
            return
        if not service.ports or _is_listening(service):
            service.status = "running"
            waiting_requests, service.start_requests = service.start_requests, []
            for request in waiting_requests:
                try:
                    self._outbox.reply(
                        request, self._describe_service(service, self._find_definition(service.name, request))
                    )
                except BadDefinition as e:
                    self._outbox.refuse(request, "invalid", str(e))
            return
        if time.monotonic() > service.deadline:
            self._fail_start(service, f"it does not listen on port {service.ports[0]}")
            service.is_stopping = service.is_stopping or bool(service.pid)
            self._kill_service(service)
            return
        next_delay_s = min(2 * delay_s, _MAX_PORT_CHECK_S)
        service.timer = self._loop.call_later(delay_s, lambda: self._await_port(service, next_delay_s))

    def _fail_start(self, service: Service, reason: str) -> None:
        output_tail = service.output_tail.decode("utf-8", "replace").strip()
        service.status, service.reason = "failed", reason
        waiting_requests, service.start_requests = service.start_requests, []
        failure_text = f"the service {service.name} could not be started: {reason}" + (
            f"\n{output_tail}" if output_tail else ""
        )
        for request in waiting_requests:
            self._outbox.refuse(request, "failed", failure_text)

    # ---- output and end

    def _on_output(self, service: Service, fd: int, is_reason: bool) -> None:
        try:
            output_bytes = os.read(fd, 65_536)
        except BlockingIOError:
            return
        except OSError:
            output_bytes = b""
        if not output_bytes:
            self._loop.unwatch(fd)
            os.close(fd)
        elif is_reason:
            service.failure_text += output_bytes
        else:
            service.output_tail = (service.output_tail + output_bytes)[-_OUTPUT_TAIL_BYTES:]
            self._log("stdout", output_bytes)

    def child_died(self, pid: int, wait_status: int) -> bool:
        """Handles the end of a service's process; returns False for other processes."""
        service = next((candidate for candidate in self._services.values() if candidate.pid == pid), None)
        if service is None:
            return False
        service.pid = 0
        for timer in (service.kill_timer, None if service.status == "starting" else service.timer):
            if timer is not None:
                timer.cancel()
        exit_code, signum = process.exit_of(wait_status)
        status_before = service.status
        if service.is_stopping:
            self._mark_ended(service, "stopped" if status_before != "failed" else "failed", service.reason)
        elif status_before != "starting":
            reason = f"it ended with {process.signal_name(signum) if signum else f'exit code {exit_code}'}"
            self._mark_ended(service, "stopped" if exit_code == 0 else "failed", reason)
            self._outbox.send({"t": "service-ended", "name": service.name, "exitCode": exit_code, "signal": signum})
            self._outbox.warn(f"the service {service.name} has ended: {reason}")
        elif exit_code != 0:  # else it went to the background: its port tells the rest
            reason = f"it ended with {process.signal_name(signum) if signum else f'exit code {exit_code}'}"
            service.is_stopping = True
            # Its last output is in its pipes still.
            self._loop.call_later(
                _FIRST_PORT_CHECK_S,
                lambda: self._fail_start(service, service.failure_text.decode("utf-8", "replace") or reason),
            )
        return True

    def _mark_ended(self, service: Service, status: str, reason: Optional[str]) -> None:
        if service.start_requests:
            self._fail_start(service, "it was stopped")
        if service.timer is not None:
            service.timer.cancel()
        service.status, service.reason, service.ports, service.group = status, reason, [], 0
        service.is_stopping = False
        waiting_requests, service.stop_requests = service.stop_requests, []
        for request in waiting_requests:
            self._outbox.reply(request, {})

    @staticmethod
    def _kill_service(service: Service) -> None:
        if service.pid:
            process.kill_group(service.pid, signal.SIGKILL)

    def end_all(self) -> None:
        """Kills the process groups of all services at the end of the workload."""
        for service in self._services.values():
            if service.group:
                process.kill_group(service.group, signal.SIGKILL)

    # ---- states

    def _is_up(self, service: Service) -> bool:
        """True if the service runs. A service without a known process runs while its port listens."""
        if service.status != "running" or service.is_stopping:
            return False
        if not service.pid and service.ports and not _is_listening(service):
            service.status, service.reason, service.ports, service.group = "stopped", None, [], 0
            return False
        return True

    @staticmethod
    def _describe_service(service: Service, definition: Optional[Definition]) -> Message:
        is_running = service.status == "running"
        return {
            "name": service.name,
            "protocol": service.protocol,
            "status": service.status,
            "ports": service.ports if is_running else [],
            "reason": service.reason,
            **_describe_offer(definition),
        }

    @staticmethod
    def _describe_passive(name: str, protocol: str, ports: List[int], definition: Optional[Definition]) -> Message:
        """Returns the state of a service that the user or the image starts: it runs while its port listens."""
        is_listening = bool(ports) and ports[0] in _listening_ports()
        status = "running" if is_listening else "stopped"
        return {"name": name, "protocol": protocol, "status": status, "ports": ports, **_describe_offer(definition)}


def _describe_offer(definition: Optional[Definition]) -> Message:
    if definition is None:
        return {}
    return {
        "url_template": definition.url_template,
        "allowed_arguments": definition.allowed_arguments,
        "allowed_envs": definition.allowed_envs,
    }


def _start_timeout_s(request: Message) -> float:
    timeout = request.get("timeout")
    return float(timeout) if isinstance(timeout, (int, float)) and 0 < timeout <= 600 else START_TIMEOUT_S


def _parse_declaration(declaration: Message) -> Any:
    name, protocol, ports = declaration["name"], declaration["protocol"], declaration["ports"]
    if not is_name(name) or not isinstance(protocol, str):
        raise ValueError("a service has a name and a protocol")
    if not isinstance(ports, list) or not all(isinstance(port, int) and 0 < port < 65_536 for port in ports):
        raise ValueError("ports are numbers from 1 to 65535")
    return name, protocol, ports


def _free_ports(count: int) -> List[int]:
    """Returns `count` unused port numbers of 127.0.0.1."""
    import socket

    sockets = [socket.socket() for _ in range(count)]
    try:
        for bound_socket in sockets:
            bound_socket.bind(("127.0.0.1", 0))
        return [bound_socket.getsockname()[1] for bound_socket in sockets]
    finally:
        for bound_socket in sockets:
            bound_socket.close()


def _is_listening(service: Service) -> bool:
    if service.socket_path:
        return os.path.exists(service.socket_path)
    return service.ports[0] in _listening_ports()


def _listening_ports() -> Set[int]:
    """Returns the listening TCP ports of this network namespace, read from /proc without connecting."""
    ports = set()
    for table_path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table_path, encoding="ascii") as file:
                socket_lines = file.read().splitlines()[1:]
        except OSError:
            continue  # no such protocol here
        for line in socket_lines:
            _, local_address, _, tcp_state = line.split(None, 4)[:4]
            if tcp_state == _TCP_STATE_LISTEN:
                ports.add(int(local_address.rpartition(":")[2], 16))
    return ports
