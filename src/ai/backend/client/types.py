"""Defines the value ``undefined`` of arguments that were not given, and the base class of SDK objects.

``undefined`` is that of spec 03-12:703. The base class is for objects that make requests.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Undefined(Enum):
    """The type of :data:`undefined`, the value of an argument that the caller did not give."""

    token = 0


undefined: Final = Undefined.token
"""Stands for a value that was not given, where None is a value."""


class Remote:
    """Base class of the SDK's objects that make requests. Blocking programs use each such object as a ``Blocking``."""
