"""The parts of URLs that requests and their signatures need, without the objects of an HTTP library."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"


def normal_url(text: str) -> str:
    """Returns the URL of an endpoint with its host in lower case and its path encoded.

    Raises ValueError if it is none.
    """
    url_parts = urlsplit(text)
    if url_parts.scheme not in _DEFAULT_PORTS or not url_parts.hostname or url_parts.port == 0:
        raise ValueError("an endpoint is written http://HOST[:PORT] or https://HOST[:PORT]")
    host = url_parts.hostname if url_parts.hostname.isascii() else url_parts.hostname.encode("idna").decode()
    host = f"[{host}]" if ":" in host else host
    port_suffix = "" if url_parts.port is None else f":{url_parts.port}"
    return f"{url_parts.scheme}://{host}{port_suffix}{quote(url_parts.path, safe=_PATH_CHARACTERS)}"


def host_of(url: str) -> str:
    """Returns the ``Host`` header of a URL: its host, with the port unless it is the default of the scheme."""
    url_parts = urlsplit(url)
    host = url_parts.netloc.rpartition("@")[2].lower()
    return host.removesuffix(f":{_DEFAULT_PORTS[url_parts.scheme]}")


def raw_target(url: str) -> str:
    """Returns the path and the query of a URL as they are on the wire."""
    url_parts = urlsplit(url)
    return f"{url_parts.path or '/'}{'?' + url_parts.query if url_parts.query else ''}"
