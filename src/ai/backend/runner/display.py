"""Displays values, rich representations, figures and password prompts of a run."""

from __future__ import annotations

import builtins
import sys

from . import streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Optional

    from .link import Link

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # a module or its dict, both are allowed

MAX_RICH = 6 * 1024 * 1024
_link: Optional[Link] = None
# In order of preference: the richest form that an object has is shown, and only that one.
_REPRESENTATIONS = (
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_html_", "text/html"),
)


def install(link: Link) -> None:
    """Installs the display hook and import hooks for the interpreter that owns `link`."""
    global _link  # noqa: PLW0603  # one interpreter per process; the matplotlib backend has no other way to reach it
    _link = link
    sys.displayhook = show_value
    sys.meta_path.insert(0, ImportHook({"getpass": _patch_getpass, "matplotlib": _patch_matplotlib}))


def show_value(value: object) -> None:
    """The display hook: ignores None, shows an object in its richest form, anything else by its repr."""
    if value is None:
        return
    builtins._ = None  # type: ignore[attr-defined]  # the display hook of Python does the same
    if isinstance(value, type) or not _show_rich(value):
        sys.stdout.write(repr(value) + "\n")
    builtins._ = value  # type: ignore[attr-defined]  # the last value, as in the interactive interpreter


def _show_rich(value: object) -> bool:
    bundle = _representation(value, "_repr_mimebundle_")
    forms = bundle if isinstance(bundle, dict) else {}
    for method, mime in _REPRESENTATIONS:
        data = forms.get(mime)
        if data is None:
            data = _representation(value, method)
        if isinstance(data, (str, bytes)):
            return show_media(mime, data)
    return False


def _representation(value: object, method: str) -> Any:
    if getattr(type(value), method, None) is None:
        return None
    data = getattr(value, method)()
    return data[0] if isinstance(data, tuple) and data else data


def show_media(mime: str, data: Any) -> bool:
    """Sends a media or html item: text unchanged, binary data as a data URI. Returns False if it is too large."""
    is_text = mime.startswith("text/") or mime.endswith(("+xml", "/xml", "/json"))
    if isinstance(data, bytes) and is_text:
        data = data.decode("utf-8", "replace")
    elif not is_text:
        if isinstance(data, bytes):
            import base64

            data = base64.b64encode(data).decode("ascii")
        if not data.startswith("data:"):
            data = f"data:{mime};base64,{data}"
    body = data.encode("utf-8", "replace")
    if _link is None or len(body) > MAX_RICH:
        return False
    for stream in streams.current():
        streams.flush_quietly(stream)
    if mime == "text/html":
        _link.send(b"T", body)
    else:
        _link.send(b"M", mime.encode("utf-8", "replace"), body)
    return True


class ImportHook:
    """Calls a function on a module right after its first import, without importing anything itself."""

    def __init__(self, patches: Dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Finds a module as the other finders do; wraps the loader of a module that is to be patched."""
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                _patch_after_load(spec, patch)
                return spec
        self._patches[name] = patch  # not installed yet; it may be later
        return None


def _patch_after_load(spec: Any, patch: Callable[[Any], None]) -> None:
    load = getattr(spec.loader, "exec_module", None)
    if load is None:
        return

    def load_and_patch(module: Any) -> None:
        load(module)
        patch(module)

    try:
        spec.loader.exec_module = load_and_patch
    except AttributeError:
        return  # a loader that cannot be changed: the module works, without our part


def _patch_getpass(module: Any) -> None:
    def getpass(prompt: str = "Password: ", stream: Any = None, **_options: Any) -> str:
        """Asks the user for a secret; the client does not echo it."""
        print(prompt, end="", file=stream or sys.stdout, flush=True)
        if _link is None:
            raise EOFError
        return _link.ask(True)

    module.getpass = getpass


def _patch_matplotlib(module: Any) -> None:
    import os

    if "MPLBACKEND" not in os.environ:
        # Not by the environment variable: a program started from a run has no backend of this name.
        module.rcParams["backend"] = "module://_backendai_runner.mpl_backend"
