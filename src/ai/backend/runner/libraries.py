"""Makes the installed packages importable for the user's code, in the interpreter child before its first code.

The runner is started without `site` (`-S`), whose start-up code (`.pth` files) can cost more than all else.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterable

_OWN_MODULES = ("traceback", "linecache", "tokenize", "re", "keyword", "token")
_RUNNER_ONLY_FLAGS = ("isolated", "ignore_environment", "no_user_site", "no_site", "safe_path")


class Flags(tuple):  # type: ignore[type-arg]  # its type is not subscriptable on Python 3.8
    """Replaces `sys.flags`, so that Python children that get the same flags (`multiprocessing`) start normally."""

    __slots__ = ()
    names: Any = ()

    def __new__(cls, real_flags: Iterable[Any]) -> Flags:  # noqa: PYI034  # Self is not in the library of Python 3.8
        cls.names = [
            flag_text.partition("=")[0] for flag_text in repr(real_flags).partition("(")[2].rstrip(")").split(", ")
        ]
        return super().__new__(
            cls,
            [
                type(flag_value)(0) if name in _RUNNER_ONLY_FLAGS else flag_value
                for name, flag_value in zip(cls.names, real_flags)
            ],
        )

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return self[self.names.index(name)]
        try:
            return getattr(_REAL_FLAGS, name)
        except AttributeError:
            raise AttributeError(f"'sys.flags' object has no attribute {name!r}") from None

    def __repr__(self) -> str:
        return "sys.flags(" + ", ".join("%s=%r" % name_and_value for name_and_value in zip(self.names, self)) + ")"


_REAL_FLAGS = sys.flags


class NewFolderFinder:
    """Finds modules in folders of `sys.path` that were made after an earlier import had looked for them."""

    def find_spec(self, module_name: str, path: Any = None, target: Any = None) -> Any:
        """Returns the spec of a top-level module; asked after all other finders."""
        folder_finders = sys.path_importer_cache
        new_folders = [folder for folder in sys.path if folder in folder_finders and folder_finders[folder] is None]
        new_folders = [folder for folder in new_folders if os.path.isdir(folder)]
        if path is not None or not new_folders:
            return None
        for folder in new_folders:
            del folder_finders[folder]
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(module_name, None, target)


def _run_site(site_step: Callable[[Any], None]) -> None:
    try:
        import site

        site_step(site)
    except BaseException:  # noqa: BLE001  # foreign code, and the user's other packages work without it
        sys.excepthook(*sys.exc_info())


def open_libraries(home: str) -> None:
    """Runs the start-up of an ordinary interpreter; a package whose start-up code fails is reported and skipped.

    The modules that the runner needs for tracebacks and completions are loaded before the user's folders are searched,
    so that a file of the user's with such a name does not take their place.
    """
    if sys.flags.no_site:
        _run_site(lambda site: site.main())
        sys.flags = Flags(sys.flags)  # type: ignore[assignment]  # of a type of its own in the stubs
    for module_name in _OWN_MODULES:
        __import__(module_name)
    import_paths = [""]
    import_paths += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = import_paths
    user_site = "%s/.local/lib/python%d.%d/site-packages" % (home, sys.version_info[0], sys.version_info[1])
    if os.path.isdir(user_site):
        _run_site(lambda site: site.addsitedir(user_site))
    else:
        sys.path.append(user_site)
    sys.meta_path.append(NewFolderFinder())
