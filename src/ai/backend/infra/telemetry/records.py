"""Texts of log records that every encoder takes."""

from __future__ import annotations

import logging

MAX_MESSAGE_LENGTH = 8192


def message_of(record: logging.LogRecord, *, max_length: int = MAX_MESSAGE_LENGTH) -> str:
    """Returns the message of a record, shortened, in characters that UTF-8 has.

    The name of a file may have others, for which the encoders of JSON and OTLP raise an error: the record, or the
    whole batch that it is in, would be lost.
    """
    return encodable(record.getMessage()[:max_length])


def encodable(text: str) -> str:
    """Returns a text with characters that UTF-8 does not have written as escapes."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
