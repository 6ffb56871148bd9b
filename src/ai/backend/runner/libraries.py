"""Makes the installed packages importable for the user's code, in the interpreter child after its greeting.

The runner is started without `site` (`-S`), whose start-up code (`.pth` files) can cost more than all else.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

_OURS = ("isolated", "ignore_environment", "no_user_site", "no_site", "safe_path")


class Flags(tuple):  # type: ignore[type-arg]  # its type is not subscriptable on Python 3.8
    """Replaces `sys.flags`, so that children that repeat the flags (`multiprocessing`) start normally."""

    __slots__ = ()
    names: Any = ()

    def __new__(cls, real: Iterable[Any]) -> Flags:  # noqa: PYI034  # Self is not in the library of Python 3.8
        cls.names = [field.partition("=")[0] for field in repr(real).partition("(")[2].rstrip(")").split(", ")]
        return super().__new__(
            cls, [type(value)(0) if name in _OURS else value for name, value in zip(cls.names, real)]
        )

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return self[self.names.index(name)]
        try:
            return getattr(_REAL, name)
        except AttributeError:
            raise AttributeError(f"'sys.flags' object has no attribute {name!r}") from None

    def __repr__(self) -> str:
        return "sys.flags(" + ", ".join("%s=%r" % pair for pair in zip(self.names, self)) + ")"


_REAL = sys.flags


def open_libraries(home: str) -> None:
    """Runs the start-up of an ordinary interpreter; a package whose start-up code fails is reported and skipped."""
    if sys.flags.no_site:
        try:
            import site

            site.main()
        except BaseException:  # noqa: BLE001  # foreign code, and the user's other packages work without it
            sys.excepthook(*sys.exc_info())
        sys.flags = Flags(sys.flags)  # type: ignore[assignment]  # of a type of its own in the stubs
    extra = [""]
    extra += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:0] = extra
    user_site = "%s/.local/lib/python%d.%d/site-packages" % (home, sys.version_info[0], sys.version_info[1])
    if os.path.isdir(user_site):
        import site

        site.addsitedir(user_site)
    else:
        sys.path.append(user_site)
