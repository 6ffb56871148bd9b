"""Provides the parts of `json` and `signal` that a session's processes use, without the Python modules of these names.

Those import `enum`, `re`, `functools` and `collections`: together they take longer than the start of the interpreter,
and in gVisor each file costs a dozen slow system calls. User code that imports them gets the ordinary modules.
An interpreter without the C halves of CPython falls back to the ordinary modules. Texts are UTF-8, without a mark.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, Callable, Tuple
else:
    try:
        import _signal as signal
    except ImportError:
        import signal

__all__ = ["dumps", "loads", "signal"]


def _ordinary_json() -> Tuple[Callable[..., str], Callable[[bytes | bytearray], Any]]:
    import json

    def dumps_compactly(value: Any, *, ensure_ascii: bool = True) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":"))

    def loads_text(body: bytes | bytearray) -> Any:
        return json.loads(body.decode("utf-8", "surrogatepass"))

    return dumps_compactly, loads_text


def _c_json() -> Tuple[Callable[..., str], Callable[[bytes | bytearray], Any]]:
    import _json

    class Context:
        """Holds the decoding options for the JSON scanner of C, as `json.JSONDecoder` does."""

        strict = True
        object_hook = object_pairs_hook = memo = None
        parse_float, parse_int = float, int
        parse_constant = {"-Infinity": float("-inf"), "Infinity": float("inf"), "NaN": float("nan")}.__getitem__

    def refuse_value(value: object) -> Any:
        raise TypeError(f"{type(value).__name__} is not a JSON type")

    def make_encoder(encode_text: Callable[[str], str]) -> Callable[[Any, int], Tuple[str, ...]]:
        return _json.make_encoder(None, refuse_value, encode_text, None, ":", ",", False, False, True)

    scan = _json.make_scanner(Context)  # type: ignore[arg-type]  # the stub asks for another scanner
    encode_ascii, encode_unicode = make_encoder(_json.encode_basestring_ascii), make_encoder(_json.encode_basestring)

    def dumps_compactly(value: Any, *, ensure_ascii: bool = True) -> str:
        return "".join((encode_ascii if ensure_ascii else encode_unicode)(value, 0))

    def loads_text(body: bytes | bytearray) -> Any:
        text = body.decode("utf-8", "surrogatepass").strip(" \t\n\r")
        try:
            value, end = scan(text, 0)
        except StopIteration as stop:
            raise ValueError(f"no JSON value at character {stop.value}") from None
        if end != len(text):
            raise ValueError(f"something follows the JSON value at character {end}")
        return value

    return dumps_compactly, loads_text


try:
    dumps, loads = _c_json()
except (ImportError, AttributeError, TypeError):
    dumps, loads = _ordinary_json()
