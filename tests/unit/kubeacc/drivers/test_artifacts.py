"""Images of devices: who signed them, and that they are what was signed."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ai.backend.common.errors import ArtifactRejected, InvalidInput, NotFound
from ai.backend.kubeacc.crd.classes import Signer
from ai.backend.kubeacc.crd.operations import Artifact
from ai.backend.kubeacc.drivers.artifacts import local_image, verify_signature

IMAGE = b"bits"
DIGEST = hashlib.sha256(IMAGE)
ED = ed25519.Ed25519PrivateKey.from_private_bytes(b"1" * 32)
EC = ec.derive_private_key(7, ec.SECP256R1())


def signer(name: str, key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey | rsa.RSAPublicKey) -> Signer:
    return Signer(name=name, public_key=key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode())


SIGNERS = (signer("ed", ED.public_key()), signer("ec", EC.public_key()))
SIGNATURES = {
    "ed": base64.b64encode(ED.sign(DIGEST.digest())).decode(),
    "ec": base64.b64encode(EC.sign(DIGEST.digest(), ec.ECDSA(utils.Prehashed(SHA256())))).decode(),
}


def artifact(**parts: str) -> Artifact:
    return Artifact(**{"uri": "file:///images/a.bit", "sha256": DIGEST.hexdigest(), **parts})


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signatures_of_the_class_are_taken(name: str) -> None:
    verify_signature(artifact(signer=name, signature=SIGNATURES[name]), SIGNERS, is_required=True)


def test_without_signers_and_policy_no_signature_is_needed() -> None:
    verify_signature(artifact(), (), is_required=False)


@pytest.mark.parametrize(
    ("image", "signers", "message"),
    [
        (artifact(), SIGNERS, "not signed"),
        (artifact(signer="bob", signature=SIGNATURES["ed"]), SIGNERS, "bob is no signer"),
        (artifact(signer="ec", signature=SIGNATURES["ed"]), SIGNERS, "does not fit"),
        (artifact(signer="ed", signature="%%%"), SIGNERS, "does not fit"),
        (artifact(signer="ed", signature=SIGNATURES["ed"], sha256="0" * 64), SIGNERS, "does not fit"),
        (artifact(signer="x", signature="AAAA"), (Signer(name="x", public_key="-----BEGIN"),), "cannot be read"),
    ],
)
def test_other_images_are_rejected(image: Artifact, signers: tuple[Signer, ...], message: str) -> None:
    with pytest.raises(ArtifactRejected, match=message):
        verify_signature(image, signers, is_required=False)


def test_a_policy_requires_a_signature_where_the_class_does_not() -> None:
    with pytest.raises(ArtifactRejected, match="not signed"):
        verify_signature(artifact(), (), is_required=True)


def test_an_image_is_a_file_of_its_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "images", tmp_path / "secret.bit"
    folder.mkdir()
    outside.write_bytes(IMAGE)
    (folder / "a.bit").write_bytes(IMAGE)
    (folder / "link.bit").symlink_to(outside)
    assert local_image(artifact(uri=f"file://{folder}/a.bit"), folder) == folder / "a.bit"
    for name in ("link.bit", "../secret.bit", "%2e%2e/secret.bit"):
        with pytest.raises(InvalidInput, match="not in the folder of images"):
            local_image(artifact(uri=f"file://{folder}/{name}"), folder)
    with pytest.raises(NotFound):
        local_image(artifact(uri=f"file://{folder}/b.bit"), folder)
    with pytest.raises(InvalidInput, match="https: are not fetched here"):
        local_image(artifact(uri="https://host/a.bit"), folder)
