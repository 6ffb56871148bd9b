"""The blocking faces of the areas whose objects have no handle."""

from __future__ import annotations
