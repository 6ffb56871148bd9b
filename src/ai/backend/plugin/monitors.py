"""Defines the public interface of monitors, services that receive the errors and statistics of daemons (spec 03-02).

A plugin is a subclass of :class:`AbstractErrorMonitor` under the entry point group :data:`ERROR_MONITOR_GROUP`, or of
:class:`AbstractStatsMonitor` under :data:`STATS_MONITOR_GROUP`. ``[monitors]`` of a daemon's settings enables it by
name and has its settings.

Each daemon calls its monitors in one thread of their own, with texts from which secrets were removed. A monitor that
blocks loses later reports, an error of it is logged; neither disturbs the daemon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import BaseModel

SPI_VERSION = 20
ERROR_MONITOR_GROUP = "backendai_error_monitor_v20"
STATS_MONITOR_GROUP = "backendai_stats_monitor_v20"


@dataclass(frozen=True, slots=True)
class Frame:
    """Describes a place in a program that an exception passed."""

    module: str
    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Describes an exception: its type, its text, and the frames of its traceback, the outermost frame first.

    No variable is in it.
    """

    type: str
    module: str
    text: str
    frames: Sequence[Frame]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """Describes an error that a daemon has logged.

    Attributes:
        at: seconds since 1970.
        level: ``error`` or ``critical``.
        message: what was logged; ``template`` is the same for all errors of its kind, without their values.
        failures: the exception and its causes, the first cause first; empty if there was none.
        ids: of the request, session, kernel and trace, where they are known.
    """

    at: float
    daemon: str
    level: Literal["error", "critical"]
    logger: str
    message: str
    template: str
    failures: Sequence[Failure]
    ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Statistic:
    """Holds a statistic of a daemon: a gauge's present value, or a counter's growth since the last report."""

    name: str
    kind: Literal["gauge", "counter"]
    value: float
    labels: Mapping[str, str]


class AbstractMonitor:
    """The base of error monitors and statistics monitors.

    ``daemon`` is the name of the daemon, ``version`` that of this program.
    """

    spi_version: ClassVar[int] = SPI_VERSION
    settings_model: ClassVar[type[BaseModel] | None] = None

    def __init__(self, settings: BaseModel | None, *, daemon: str, version: str) -> None:
        self.settings = settings
        self.daemon, self.version = daemon, version

    def close(self, timeout_s: float) -> None:
        """Sends the waiting reports within ``timeout_s`` seconds, and releases the monitor's resources."""


class AbstractErrorMonitor(AbstractMonitor):
    """Reports errors to a service."""

    def report(self, error: ErrorReport) -> None:
        """Sends an error to the service, or queues it for sending."""
        raise NotImplementedError


class AbstractStatsMonitor(AbstractMonitor):
    """Reports statistics to a service."""

    def report(self, statistics: Sequence[Statistic]) -> None:
        """Sends the statistics of one moment to the service."""
        raise NotImplementedError
