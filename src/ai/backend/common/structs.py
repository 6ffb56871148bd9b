"""Copies values with changes, both structs and dataclasses.

Values are frozen classes of :class:`msgspec.Struct`; those of the plugin interface, and those with a field that no text
may show, are dataclasses (docs/decisions/0743).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["replace"]

if TYPE_CHECKING:
    # Under this name mypy compares the changes with the fields of structs too; it does not for msgspec's function.
    from dataclasses import replace
else:
    import dataclasses

    import msgspec

    def replace(value, /, **changes):
        """Returns a copy of a struct or dataclass with other values in the fields that ``changes`` names.

        Raises TypeError: there is no such field.
        """
        if isinstance(value, msgspec.Struct):
            return msgspec.structs.replace(value, **changes)
        return dataclasses.replace(value, **changes)
