"""Verifies the signers and the folders of device images before a device receives an image."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ai.backend.common.errors import ArtifactRejected, InvalidInput, NotFound
from ai.backend.kubeacc.crd.classes import Signer
from ai.backend.kubeacc.crd.operations import Artifact


def verify_signature(artifact: Artifact, signers: Iterable[Signer], *, is_required: bool) -> None:
    """Raises ArtifactRejected if the signature of an image is wrong, or missing although it is required.

    A class with signers, and a policy that says so, require a signature.
    Ed25519 signs the 32 bytes of the digest; ECDSA on P-256 signs the image by its SHA-256 digest.

    Raises:
        ArtifactRejected: a signature is missing, of an unknown signer, or wrong.
    """
    by_name = {signer.name: signer for signer in signers}
    if artifact.signature is None or artifact.signer is None:
        if is_required or by_name:
            raise ArtifactRejected("the image is not signed, and the class or the policy requires a signature")
        return
    signer = by_name.get(artifact.signer)
    if signer is None:
        names = ", ".join(sorted(by_name)) or "none"
        raise ArtifactRejected(f"{artifact.signer} is no signer of the device's class; its signers: {names}")
    # Eight mebibytes that a node plugin without such an operation does not have.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    digest = bytes.fromhex(artifact.sha256)
    try:
        signature = base64.b64decode(artifact.signature, validate=True)
        key = load_pem_public_key(signer.public_key.encode())
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, digest)
        elif isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1):
            key.verify(signature, digest, ec.ECDSA(utils.Prehashed(SHA256())))
        else:
            raise ArtifactRejected(f"the key of {signer.name} is neither Ed25519 nor of the curve P-256")
    except (InvalidSignature, binascii.Error):
        raise ArtifactRejected(f"the signature of {signer.name} does not fit the digest of the image") from None
    except ValueError as e:
        raise ArtifactRejected(f"the key of {signer.name} cannot be read: {e}") from None


def local_image(artifact: Artifact, folder: Path) -> Path:
    """Returns the path of a ``file:///`` image, with links resolved, after a check that it is in the folder of images.

    Raises InvalidInput: another scheme, or a path that leaves the folder. NotFound: no such file.
    """
    uri_parts = urlsplit(artifact.uri)
    if uri_parts.scheme != "file":
        raise InvalidInput(
            f"images of {uri_parts.scheme}: are not fetched here; put the image into {folder} of the node"
        )
    path = Path(os.path.realpath(unquote(uri_parts.path)))
    if not path.is_relative_to(os.path.realpath(folder)):
        raise InvalidInput(f"{unquote(uri_parts.path)[:512]!r} is not in the folder of images, {folder}")
    if not path.is_file():
        raise NotFound(f"there is no image {unquote(uri_parts.path)[:512]!r}")
    return path
