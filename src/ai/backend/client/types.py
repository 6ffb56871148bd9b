"""Defines the value of an argument that was not given (spec 03-12:703), and the base of SDK objects that
make requests."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Undefined(Enum):
    """The type of :data:`undefined`."""

    token = 0


undefined: Final = Undefined.token
"""Stands for a value that was not given, where None is a value."""


class Remote:
    """Base of the objects of the SDK that make requests; blocking programs use each of them as a ``Blocking``."""
