"""A value that says that no value was given (spec 03-12:703), and what blocking programs recognise areas by."""

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
