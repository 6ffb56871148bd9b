"""The parts of URLs that requests and their signatures need, without the objects of an HTTP library."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"


def normal_url(text: str) -> str:
    """Returns the URL of an endpoint with its host in lower case and its path encoded.

    Raises ValueError if it is none.
    """
    parts = urlsplit(text)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.port == 0:
        raise ValueError("an endpoint is written http://HOST[:PORT] or https://HOST[:PORT]")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{quote(parts.path, safe=_PATH_CHARACTERS)}"


def host_of(url: str) -> str:
    """Returns the ``Host`` header of a URL: its host, with the port unless it is the default of the scheme."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return host.removesuffix(f":{_DEFAULT_PORTS[parts.scheme]}")


def raw_target(url: str) -> str:
    """Returns the path and the query of a URL as they are on the wire."""
    parts = urlsplit(url)
    return f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
