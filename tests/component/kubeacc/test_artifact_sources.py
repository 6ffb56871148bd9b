"""Images of https and of container registries: from real servers, and from hostile ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import ssl
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiohttp import web

from ai.backend.common.errors import (
    AddressRefused,
    ArtifactRejected,
    BackendError,
    InvalidInput,
    NotFound,
    RegistryRefused,
    RegistryUnavailable,
)
from ai.backend.kubeacc.crd.operations import Artifact
from ai.backend.kubeacc.drivers.artifact_settings import ArtifactAccountSettings, ArtifactSettings
from ai.backend.kubeacc.drivers.artifact_sources import RemoteImages
from ai.backend.kubeacc.drivers.artifact_store import ArtifactStore
from tests.support.certificates import self_signed
from tests.support.cluster import free_port
from tests.support.docker_registry import PASSWORD, USER, DockerRegistry, running_registry

BITS = bytes(range(256)) * 2000
SHA256 = hashlib.sha256(BITS).hexdigest()
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


class Server:
    """A server on 127.0.0.1 that answers by ``handler``, and counts."""

    def __init__(self) -> None:
        self.port = free_port()
        self.requests: list[web.Request] = []
        self.handler: Handler = self.whole

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/a.bit"

    async def whole(self, request: web.Request) -> web.StreamResponse:
        start = int(request.headers.get("Range", "bytes=0-")[6:-1])
        if not start:
            return web.Response(body=BITS)
        headers = {"Content-Range": f"bytes {start}-{len(BITS) - 1}/{len(BITS)}"}
        return web.Response(status=206, body=BITS[start:], headers=headers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self.handler(request)


@pytest.fixture
async def server(certificate: tuple[Path, Path]) -> AsyncIterator[Server]:
    server = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", server.port, ssl_context=context).start()
    yield server
    await runner.cleanup()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]) -> Iterator[DockerRegistry]:
    with running_registry(tmp_path_factory.mktemp("r") / "r", is_closed=True, certificate=certificate) as registry:
        yield registry


class Images:
    """A store whose settings trust 127.0.0.1."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.settings = ArtifactSettings(**settings)
        self.folder = folder
        self.remote = RemoteImages(self.settings, folder)
        self.store = ArtifactStore(folder, self.settings, self.remote.sources)

    async def fetch(self, uri: str, sha256: str = SHA256) -> bytes:
        return (await self.store.fetch(Artifact(uri=uri, sha256=sha256))).read_bytes()


@pytest.fixture
async def images(tmp_path: Path, certificate: tuple[Path, Path]) -> AsyncIterator[Images]:
    images = Images(tmp_path / "images", allowed_hosts=("127.0.0.1",), ca_file=certificate[0], max_size=1 << 20)
    yield images
    await images.remote.close()


async def test_an_image_is_fetched_and_goes_on_after_a_break(server: Server, images: Images) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(BITS))})
        await response.prepare(request)
        await response.write(BITS[:100_000])
        assert request.transport is not None
        request.transport.abort()
        return response

    server.handler = break_off
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        await images.fetch(server.url)
    server.handler = server.whole
    assert await images.fetch(server.url) == BITS
    start = int(server.requests[-1].headers["Range"][6:-1])
    assert 0 < start <= 100_000
    await images.fetch(server.url)
    assert len(server.requests) == 2


async def test_a_server_without_ranges_starts_again(server: Server, images: Images) -> None:
    partial = images.folder / f".{SHA256}.partial"
    images.folder.mkdir()
    partial.write_bytes(BITS[:1000])

    async def ignore(request: web.Request) -> web.StreamResponse:
        return web.Response(body=BITS)

    server.handler = ignore
    assert await images.fetch(server.url) == BITS


def answer(**parts: Any) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(**parts)

    return handle


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(bytes(1 << 16))


def redirect(location: str) -> Handler:
    return answer(status=302, headers={"Location": location})


HOSTILE: list[tuple[Handler, type[BackendError], str]] = [
    (answer(body=b"other"), ArtifactRejected, "another digest"),
    (endless, ArtifactRejected, "larger than"),
    (answer(body=bytes(2 << 20)), ArtifactRejected, "larger than"),
    (answer(body=gzip.compress(BITS), headers={"Content-Encoding": "gzip"}), RegistryUnavailable, "compresses"),
    (redirect("https://169.254.169.254/latest/meta-data"), AddressRefused, "none of the allowed hosts"),
    (redirect("http://127.0.0.1/a.bit"), RegistryRefused, "weaker"),
    (redirect("file:///etc/passwd"), AddressRefused, "URL"),
    (redirect("/again"), RegistryRefused, "more than 5 times"),
    (answer(status=404), NotFound, "no such image"),
    (answer(status=403), RegistryRefused, "403"),
    (answer(status=500), RegistryUnavailable, "500"),
]


@pytest.mark.parametrize(("handler", "error", "message"), HOSTILE)
async def test_hostile_servers_are_refused(
    server: Server, images: Images, handler: Handler, error: type[BackendError], message: str
) -> None:
    server.handler = handler
    with pytest.raises(error, match=message):
        await images.fetch(server.url)
    assert not [path for path in images.folder.iterdir() if path.stat().st_size]


METADATA = ["https://169.254.169.254/a", "https://10.0.0.1/a", "https://[::ffff:169.254.169.254]/a", "https://127.1/a"]


@pytest.mark.parametrize("uri", [*METADATA, "oci://169.254.169.254/a@sha256:" + "0" * 64])
async def test_addresses_that_are_not_public_are_refused_without_any_settings(tmp_path: Path, uri: str) -> None:
    images = Images(tmp_path / "images")
    try:
        with pytest.raises(AddressRefused):
            await images.fetch(uri)
    finally:
        await images.remote.close()


async def test_an_unknown_certificate_is_refused(server: Server, tmp_path: Path) -> None:
    images = Images(tmp_path / "images", allowed_hosts=("127.0.0.1",))
    try:
        with pytest.raises(RegistryRefused, match="certificate"):
            await images.fetch(server.url)
    finally:
        await images.remote.close()


def tar(*members: tuple[str, bytes, bytes], compress: bool = True) -> bytes:
    """Members are (name, type, content or target)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if info.isreg():
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content.decode()
                archive.addfile(info)
    return gzip.compress(file.getvalue(), 1) if compress else file.getvalue()


@pytest.mark.needs("registry")
class TestRegistry:
    """The registry wants an account, which the settings name."""

    @pytest.fixture
    async def images(
        self, tmp_path: Path, certificate: tuple[Path, Path], registry: DockerRegistry
    ) -> AsyncIterator[Images]:
        (tmp_path / "password").write_text(f"{PASSWORD}\n")
        account = ArtifactAccountSettings(username=USER, password_file=tmp_path / "password")
        images = Images(
            tmp_path / "images",
            allowed_hosts=("127.0.0.1",),
            ca_file=certificate[0],
            max_size=1 << 20,
            accounts={registry.name: account},
        )
        yield images
        await images.remote.close()

    async def test_a_layer_is_fetched_by_its_digest_or_its_manifest(
        self, registry: DockerRegistry, images: Images
    ) -> None:
        manifest = registry.put_layers("lab/fpga", b"first", BITS)
        assert await images.fetch(f"oci://{registry.name}/lab/fpga@{manifest}") == BITS
        first = hashlib.sha256(b"first").hexdigest()
        assert await images.fetch(f"oci://{registry.name}/lab/fpga@sha256:{first}", first) == b"first"

    async def test_a_layer_goes_on_where_it_was(self, registry: DockerRegistry, images: Images) -> None:
        manifest = registry.put_layers("lab/fpga", BITS)
        images.folder.mkdir()
        for size in (1000, len(BITS)):
            (images.folder / f".{SHA256}.partial").write_bytes(BITS[:size])
            assert await images.fetch(f"oci://{registry.name}/lab/fpga@{manifest}") == BITS
            (images.folder / SHA256).unlink()

    async def test_a_file_of_an_image_is_extracted(self, registry: DockerRegistry, images: Images) -> None:
        regular = tarfile.REGTYPE
        lower = tar(("./fpga/a.bit", regular, b"older"), ("fpga/only-here.bit", regular, b"lower"))
        upper = tar(("fpga/a.bit", regular, BITS), ("../../evil", regular, b"evil"), compress=False)
        manifest = registry.put_layers("lab/image", lower, upper)
        uri = f"oci://{registry.name}/lab/image@{manifest}#"
        assert await images.fetch(f"{uri}/fpga/a.bit") == BITS
        assert await images.fetch(f"{uri}fpga/only-here.bit", hashlib.sha256(b"lower").hexdigest()) == b"lower"
        assert not list(images.folder.parent.rglob("evil"))
        with pytest.raises(NotFound, match="no-such"):
            await images.fetch(f"{uri}no-such", "0" * 64)

    LAYERS: ClassVar[list[tuple[bytes, str]]] = [
        (tar(("a", tarfile.SYMTYPE, b"/etc/passwd")), "no regular file"),
        (tar(("a", tarfile.LNKTYPE, b"/etc/passwd")), "no regular file"),
        (tar(("a", tarfile.CHRTYPE, b"")), "no regular file"),
        (b"this is no tar at all" * 100, "no tar"),
        (gzip.compress(bytes(3 << 20)), "too large"),
    ]

    @pytest.mark.parametrize(("layer", "message"), LAYERS)
    async def test_tricks_of_layers_are_refused(
        self, registry: DockerRegistry, images: Images, layer: bytes, message: str
    ) -> None:
        manifest = registry.put_layers("lab/evil", layer)
        with pytest.raises(ArtifactRejected, match=message):
            await images.fetch(f"oci://{registry.name}/lab/evil@{manifest}#a")
        assert list(images.folder.iterdir()) == []

    async def test_a_header_as_long_as_memory_is_refused(self, registry: DockerRegistry, images: Images) -> None:
        images.store._settings = ArtifactSettings(max_size=64 << 20)
        header = tarfile.TarInfo("x")
        header.type, header.size = tarfile.XHDTYPE, 32 << 20
        block = header.tobuf(tarfile.USTAR_FORMAT)
        manifest = registry.put_layers("lab/evil", gzip.compress(block + bytes(32 << 20), 1))
        with pytest.raises(ArtifactRejected, match="headers that are too long"):
            await images.fetch(f"oci://{registry.name}/lab/evil@{manifest}#a")

    async def test_headers_without_end_are_refused(self, registry: DockerRegistry, images: Images) -> None:
        """One header for the next one, ten thousand times; and an entry that leads back to itself."""
        chain = tarfile.TarInfo("x")
        chain.type = tarfile.XHDTYPE
        back = tarfile.TarInfo("x")
        back.size = -512
        for block in (chain.tobuf(tarfile.USTAR_FORMAT) * 2000, back.tobuf(tarfile.GNU_FORMAT) * 4):
            manifest = registry.put_layers("lab/evil", block)
            with pytest.raises(ArtifactRejected):
                await images.fetch(f"oci://{registry.name}/lab/evil@{manifest}#a")

    async def test_a_layer_of_several_streams_is_read(self, registry: DockerRegistry, images: Images) -> None:
        archive = tar(("a.bit", tarfile.REGTYPE, BITS), compress=False)
        layer = b"".join(gzip.compress(archive[start : start + 100_000]) for start in range(0, len(archive), 100_000))
        manifest = registry.put_layers("lab/streams", layer)
        assert await images.fetch(f"oci://{registry.name}/lab/streams@{manifest}#a.bit") == BITS

    async def test_manifests_that_do_not_fit_are_refused(self, registry: DockerRegistry, images: Images) -> None:
        manifest = registry.put_layers("lab/fpga", b"another")
        with pytest.raises(ArtifactRejected, match="no layer of the digest"):
            await images.fetch(f"oci://{registry.name}/lab/fpga@{manifest}")
        with pytest.raises(NotFound):
            await images.fetch(f"oci://{registry.name}/lab/fpga@sha256:{'0' * 64}")

    async def test_without_an_account_the_registry_refuses(self, registry: DockerRegistry, images: Images) -> None:
        manifest = registry.put_layers("lab/fpga", BITS)
        images.remote._registries.clear()
        with pytest.raises(RegistryRefused):
            await images.fetch(f"oci://{registry.name}/lab/fpga@{manifest}")


@pytest.mark.parametrize(
    "path",
    [
        "/name:latest",
        "/name",
        "@sha256:" + "0" * 64,
        "/../x@sha256:" + "0" * 64,
        "/Name@sha256:" + "0" * 64,
        "/name@sha256:00",
        "/name@sha256:" + "0" * 64 + "?x=1",
    ],
)
async def test_references_without_a_digest_are_refused(images: Images, path: str) -> None:
    with pytest.raises(InvalidInput, match="oci://HOST"):
        await images.fetch(f"oci://127.0.0.1:1{path}")


async def test_a_registry_that_lies_about_a_manifest_is_refused(server: Server, images: Images) -> None:
    lie = {"layers": [{"digest": f"sha256:{SHA256}", "size": 5}]}
    server.handler = answer(body=json.dumps(lie).encode())
    with pytest.raises(ArtifactRejected, match="another manifest"):
        await images.fetch(f"oci://127.0.0.1:{server.port}/x@sha256:{'1' * 64}")


async def test_passwords_go_to_the_registry_alone(
    server: Server, tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    """A registry of an account that redirects, and a host without one, get and pass on no password."""
    (tmp_path / "password").write_text("secret")
    account = ArtifactAccountSettings(username="me", password_file=tmp_path / "password")
    images = Images(
        tmp_path / "images",
        allowed_hosts=("127.0.0.1",),
        ca_file=certificate[0],
        accounts={"registry.example:5000": account},
    )
    realm = f'Bearer realm="https://127.0.0.1:{server.port}/token",service="x"'
    server.handler = answer(status=401, headers={"WWW-Authenticate": realm})
    try:
        with pytest.raises(RegistryRefused):
            await images.fetch(f"oci://127.0.0.1:{server.port}/x@sha256:{SHA256}")
    finally:
        await images.remote.close()
    assert not [request for request in server.requests if "Authorization" in request.headers]
