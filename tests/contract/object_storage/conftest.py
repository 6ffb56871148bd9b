from __future__ import annotations

from tests.support.s3_server import s3_url

__all__ = ["s3_url"]
