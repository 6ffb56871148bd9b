"""Where the v1 plugin of a made-up vendor is installed."""

from __future__ import annotations

from pathlib import Path

SITE = Path(__file__).resolve().parents[1] / "data" / "legacy_site"
"""A directory as of site-packages, with the package ``acme_npu`` and its entry points."""
