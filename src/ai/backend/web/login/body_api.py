"""Reads the bodies of sign-ins, which the published console encrypts."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.http.decode import parse_json_object
from ai.backend.infra.http.routes import Call
from ai.backend.web.guard import public_origin

MAX_BODY_BYTES = 65_536
_ENCODED_HEADER = "X-BackendAI-Encoded"
_BLOCK_BYTES = 16


async def read_fields(call: Call, *, scheme: str) -> Mapping[str, Any]:
    """Returns the JSON object of a request, empty without a body. Raises InvalidInput."""
    content = await call.read_body()
    if call.request.headers.get(_ENCODED_HEADER, "").lower() == "true":
        content = _decrypt_body(content, public_origin(call.request, scheme=scheme))
    return parse_json_object(content)


def _decrypt_body(content: bytes, endpoint: str) -> bytes:
    """Decrypts a body of the published console: ``IV ":" base64(AES-256-CBC)`` (wire contract 5, step 4).

    The key can be computed from the address, so this hides the body from nobody; TLS does that.
    """
    initial_vector, separator, encoded_ciphertext = content.partition(b":")
    try:
        ciphertext = base64.b64decode(encoded_ciphertext, validate=True)
    except binascii.Error:
        ciphertext = b""
    if not separator or len(initial_vector) != _BLOCK_BYTES or not ciphertext or len(ciphertext) % _BLOCK_BYTES:
        raise InvalidInput("The encoded body is malformed.", data={"body": "malformed"})
    key = (base64.b64encode(endpoint.encode()) + initial_vector + initial_vector)[:32]
    decryptor = Cipher(algorithms.AES(key), modes.CBC(initial_vector)).decryptor()
    unpadder = PKCS7(_BLOCK_BYTES * 8).unpadder()
    try:
        return unpadder.update(decryptor.update(ciphertext) + decryptor.finalize()) + unpadder.finalize()
    except ValueError:
        raise InvalidInput(
            "The encoded body cannot be read: its key is made from another address than this.",
            data={"body": "undecodable"},
        ) from None
