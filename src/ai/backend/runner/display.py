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

MAX_RICH_BYTES = 6 * 1024 * 1024
_link: Optional[Link] = None
# In order of preference: the richest form that an object has is shown, and only that one.
_REPRESENTATION_METHODS = (
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_html_", "text/html"),
)


def install(link: Link) -> None:
    """Installs the display hook and the import hooks in the interpreter that owns `link`."""
    global _link  # noqa: PLW0603  # one interpreter per process; the matplotlib backend has no other way to reach it
    _link = link
    sys.displayhook = show_value
    sys.meta_path.insert(0, ImportHook({"getpass": _patch_getpass, "matplotlib": _patch_matplotlib}))


def show_value(value: object) -> None:
    """Implements `sys.displayhook`: shows an object in its richest form, or else its repr.

    Ignores None.
    """
    if value is None:
        return
    builtins._ = None  # type: ignore[attr-defined]  # the display hook of Python does the same
    if isinstance(value, type) or not _show_rich(value):
        sys.stdout.write(repr(value) + "\n")
    builtins._ = value  # type: ignore[attr-defined]  # the last value, as in the interactive interpreter


def _show_rich(value: object) -> bool:
    mime_bundle = _call_representation(value, "_repr_mimebundle_")
    data_by_mime = mime_bundle if isinstance(mime_bundle, dict) else {}
    for method, mime in _REPRESENTATION_METHODS:
        data = data_by_mime.get(mime)
        if data is None:
            data = _call_representation(value, method)
        if isinstance(data, (str, bytes)):
            return show_media(mime, data)
    return False


def _call_representation(value: object, method: str) -> Any:
    if getattr(type(value), method, None) is None:
        return None
    representation = getattr(value, method)()
    return representation[0] if isinstance(representation, tuple) and representation else representation


def show_media(mime: str, content: Any) -> bool:
    """Sends a media or html item: text unchanged, binary data as a data URI. Returns False for too large content."""
    is_text = mime.startswith("text/") or mime.endswith(("+xml", "/xml", "/json"))
    if isinstance(content, bytes) and is_text:
        content = content.decode("utf-8", "replace")
    elif not is_text:
        if isinstance(content, bytes):
            import base64

            content = base64.b64encode(content).decode("ascii")
        if not content.startswith("data:"):
            content = f"data:{mime};base64,{content}"
    encoded_content = content.encode("utf-8", "replace")
    if _link is None or len(encoded_content) > MAX_RICH_BYTES:
        return False
    for stream in streams.current_outputs():
        streams.flush_quietly(stream)
    if mime == "text/html":
        _link.send(b"T", encoded_content)
    else:
        _link.send(b"M", mime.encode("utf-8", "replace"), encoded_content)
    return True


class ImportHook:
    """Calls a module's patch function right after the first import of the module.

    Imports nothing itself.
    """

    def __init__(self, patches_by_module: Dict[str, Callable[[Any], None]]) -> None:
        self._patches = patches_by_module

    def find_spec(self, module_name: str, path: Any = None, target: Any = None) -> Any:
        """Finds a module by the other finders; wraps the loader of a module that has a patch."""
        patch = self._patches.pop(module_name, None)
        if patch is None:
            return None
        for finder in sys.meta_path:
            find_spec_of_finder = None if finder is self else getattr(finder, "find_spec", None)
            spec = find_spec_of_finder(module_name, path, target) if find_spec_of_finder is not None else None
            if spec is not None:
                _wrap_loader(spec, patch)
                return spec
        self._patches[module_name] = patch  # not installed yet; it may be later
        return None


def _wrap_loader(spec: Any, patch: Callable[[Any], None]) -> None:
    original_exec_module = getattr(spec.loader, "exec_module", None)
    if original_exec_module is None:
        return

    def load_and_patch(module: Any) -> None:
        original_exec_module(module)
        patch(module)

    try:
        spec.loader.exec_module = load_and_patch
    except AttributeError:
        return  # a loader that cannot be changed: the module works, without our part


def _patch_getpass(module: Any) -> None:
    def getpass(prompt: str = "Password: ", stream: Any = None, **_options: Any) -> str:
        """Implements `getpass`: requests a secret from the client, which does not echo the input."""
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
