"""Runs the real Cyborg and Placement in one process, with the interpreter of their own environment.

Usage: ``openstack_services.py FOLDER PLACEMENT_PORT CYBORG_PORT``. The folder has ``cyborg.conf``, ``placement.conf``
and ``api-paste.ini``; images that the agent programs are noted there in ``programmed``. Signal files in it:
``slow-program`` lets a programming wait until it is removed.
"""

# ruff: noqa: E402
import cyborg.cmd  # type: ignore[import-not-found]  # the first import: it chooses the threads of oslo.service

_ = cyborg.cmd
import hashlib
import os
import shutil
import signal
import socketserver
import sys
import threading
import time
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

folder, placement_port, cyborg_port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
os.environ["OS_PLACEMENT_CONFIG_DIR"] = str(folder)

from placement.cmd import manage  # type: ignore[import-not-found]
from placement.wsgi import init_application  # type: ignore[import-not-found]


class Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None: ...


def serve(port: int, application: Any) -> None:
    server = make_server("127.0.0.1", port, application, Server, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()


sys.argv = ["placement-manage", "--config-file", str(folder / "placement.conf"), "db", "sync"]
if not (folder / "placement.db").exists():
    try:
        manage.main()
    except SystemExit as e:
        if e.code:
            raise
serve(placement_port, init_application())

from cyborg.accelerator.drivers.fpga.base import FPGADriver  # type: ignore[import-not-found]
from cyborg.api import app  # type: ignore[import-not-found]
from cyborg.common import constants, service  # type: ignore[import-not-found]
from cyborg.db.sqlalchemy import api as database  # type: ignore[import-not-found]
from cyborg.db.sqlalchemy import models


class FakeProgramming(FPGADriver):  # type: ignore[misc]
    """The part that Cyborg's fake driver lacks: it accepts every image, and notes which."""

    VENDOR = "fake"

    def program(self, device_path: object, image: str) -> bool:
        while (folder / "slow-program").exists():
            time.sleep(0.02)
        shutil.copy(image, folder / "programmed")
        with (folder / "programs").open("a") as log:
            log.write(hashlib.sha256(Path(image).read_bytes()).hexdigest() + "\n")
        return True


service.prepare_service(["cyborg", "--config-file", str(folder / "cyborg.conf")])
if not (folder / "cyborg.db").exists():
    models.Base.metadata.create_all(
        database.main_context_manager.writer.get_engine()
    )  # its migrations alter columns, which sqlite cannot
conductor = service.RPCService("cyborg.conductor.manager", "ConductorManager", constants.CONDUCTOR_TOPIC)
conductor.start()
agent = service.RPCService("cyborg.agent.manager", "AgentManager", constants.AGENT_TOPIC)
agent.start()
serve(cyborg_port, app.load_app())
(folder / "ready").touch()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    time.sleep(3600)
