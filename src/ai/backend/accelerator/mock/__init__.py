"""Declared devices that behave like accelerators: for development, tests and demonstrations (spec 03-06)."""

from ai.backend.accelerator.mock.plugin import MockPlugin

__all__ = ["MockPlugin"]
