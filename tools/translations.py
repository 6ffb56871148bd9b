"""Keep the examples of translated pages equal to those of the originals: `docs/ko/howto/x.md` and `docs/howto/x.md`.

`python -m tools.docs` writes them. Who changes the number of examples of an original changes its translation as well.
"""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]
_FOLDER = _ROOT / "docs" / "ko"
_BLOCK_PATTERN = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def original_of(name: str) -> Path:
    """Return the original of a translated page; the first page is the README of the repository."""
    return _ROOT / "README.md" if name == "README.md" else _ROOT / "docs" / name


def page(name: str) -> str:
    """Return a translated page with the examples of its original. Raises ValueError: it has more or fewer of them."""
    text = (_FOLDER / name).read_text(encoding="utf-8")
    blocks = _BLOCK_PATTERN.findall(original_of(name).read_text(encoding="utf-8"))
    count = len(_BLOCK_PATTERN.findall(text))
    if count != len(blocks):
        raise ValueError(f"docs/ko/{name} has {count} examples and its original {len(blocks)}: translate what is new")
    remaining = iter(blocks)
    return _BLOCK_PATTERN.sub(lambda _: next(remaining), text)
