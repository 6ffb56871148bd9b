"""Computes the Content-Security-Policy of a console's page."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser


class _InlineScripts(HTMLParser):
    """Collects the texts of script elements without a source."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.texts: list[str] = []
        self._is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_inside = tag == "script" and all(name != "src" for name, _ in attrs)
        if self._is_inside:
            self.texts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = False

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            self.texts[-1] += data


def page_policy(base_policy: str, page: str) -> str:
    """Returns the policy that permits only the inline scripts of the given page, by their hashes."""
    script_parser = _InlineScripts()
    script_parser.feed(page)
    script_parser.close()
    digests = dict.fromkeys(hashlib.sha256(script_text.encode()).digest() for script_text in script_parser.texts)
    script_sources = ["'self'", *(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)]
    return f"{base_policy}; script-src {' '.join(script_sources)}"
