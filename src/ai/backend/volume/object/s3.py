"""Implements the ``s3`` storage: a bucket of any server that speaks S3, through aiobotocore (extra ``s3``).

An unfinished object is a multipart upload whose parts persist: opening the key again finds the upload in the server's
list and continues after its last whole part. An object smaller than a part is sent as a whole when it is published.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import cache
from typing import Any, ClassVar, Literal

import aiohttp
from pydantic import Field, SecretStr, ValidationError

from ai.backend.common.errors import (
    BackendError,
    BucketNotFound,
    InvalidInput,
    NoSuchFile,
    ObjectStorageRefused,
    ObjectStorageUnavailable,
    StorageFull,
    UploadNotFound,
)
from ai.backend.plugin.object_storage import (
    CHUNK_BYTES,
    ObjectCapability,
    ObjectInfo,
    ObjectPage,
    ObjectStorage,
    ObjectUpload,
    StorageContext,
    check_key,
    check_prefix,
)
from ai.backend.plugin.settings import PluginSettings, Size, problems_of

MIN_PART_BYTES = 5 << 20
"""The smallest size in bytes of a part that S3 accepts, except for the last part."""
MAX_PARTS = 10_000
_MAX_COPY_BYTES = 5 << 30
"""The largest size in bytes of one CopyObject or PutObject."""
_MAX_DELETED_KEYS = 1000
_ERRORS_BY_CODE: Mapping[str, type[BackendError]] = {
    "NoSuchBucket": BucketNotFound,
    "NoSuchKey": NoSuchFile,
    "404": NoSuchFile,
    "NoSuchUpload": UploadNotFound,
    "QuotaExceeded": StorageFull,
    "XMinioStorageFull": StorageFull,
    "XMinioAdminBucketQuotaExceeded": StorageFull,
    "EntityTooLarge": StorageFull,
}


class S3Options(PluginSettings):
    """Settings of an ``s3`` storage."""

    bucket: str = Field(min_length=3, max_length=63)
    endpoint: str | None = Field(None, description="http(s)://HOST[:PORT] of the server; AWS if unset.")
    public_endpoint: str | None = Field(None, description="The server as clients reach it, in presigned URLs.")
    region: str = "us-east-1"
    access_key: str | None = Field(None, description="If unset, what botocore finds: environment, files, instance.")
    secret_key: SecretStr | None = None
    prefix: str = Field("", description="What all keys begin with: our share of the bucket.")
    addressing: Literal["path", "virtual", "auto"] = "path"
    part_size: Size = Field(
        16 << 20, ge=MIN_PART_BYTES, le=1 << 30, description="Bytes of a part; one is held in memory."
    )
    connect_timeout: float = Field(5.0, gt=0)
    read_timeout: float = Field(20.0, gt=0)
    tries: int = Field(3, ge=1, le=10)


@cache
def shared_session() -> Any:
    """Returns the botocore session that all storages share, so that S3's description is loaded once."""
    import aiobotocore.session

    return aiobotocore.session.get_session()


class S3Storage(ObjectStorage):
    """Stores objects in a bucket. Options: :class:`S3Options`."""

    backend: ClassVar[str] = "s3"

    def __init__(self, name: str, options: Mapping[str, Any], context: StorageContext) -> None:
        super().__init__(name, options, context)
        try:
            self.options = S3Options.model_validate(dict(options))
        except ValidationError as e:
            option_name, problem = next(iter(problems_of(e).items()))
            raise InvalidInput(f"object-storage.{name}.options.{option_name}: {problem}.") from None
        if (self.options.access_key is None) != (self.options.secret_key is None):
            raise InvalidInput(f"object-storage.{name}: access-key and secret-key go together.")
        try:
            self._session = shared_session()
        except ImportError:
            raise InvalidInput(f"object-storage.{name}: install the extra for it: backendai[s3].") from None
        self._prefix = check_prefix(self.options.prefix.strip("/") + "/" if self.options.prefix.strip("/") else "")
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._presigner: Any = None

    @property
    def capabilities(self) -> frozenset[ObjectCapability]:
        return frozenset({ObjectCapability.PRESIGN})

    async def start(self) -> None:
        try:
            self._client = self._presigner = await self._stack.enter_async_context(self._connect(self.options.endpoint))
            if self.options.public_endpoint:
                public_client = self._connect(self.options.public_endpoint)
                self._presigner = await self._stack.enter_async_context(public_client)
        except ValueError as e:
            raise InvalidInput(f"object-storage.{self.name}: {e}.") from None

    def _connect(self, endpoint: str | None) -> Any:
        from aiobotocore.config import AioConfig

        options = self.options
        return self._session.create_client(
            "s3",
            endpoint_url=endpoint,
            region_name=options.region,
            aws_access_key_id=options.access_key,
            aws_secret_access_key=options.secret_key.get_secret_value() if options.secret_key else None,
            config=AioConfig(
                signature_version="s3v4",
                s3={"addressing_style": options.addressing},
                connect_timeout=options.connect_timeout,
                read_timeout=options.read_timeout,
                retries={"total_max_attempts": options.tries, "mode": "standard"},
                max_pool_connections=32,
                # Checksums in trailers are younger than many of the servers that speak S3.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    async def stop(self) -> None:
        await self._stack.aclose()

    async def check(self) -> str | None:
        try:
            await self.call("head_bucket")
        except NoSuchFile:
            return f"There is no bucket {self.options.bucket!r}."
        except BackendError as e:
            return e.message
        return None

    async def call(self, operation: str, **parameters: Any) -> Any:
        """Runs one S3 operation on the bucket. Raises as :func:`_translated_errors`."""
        with _translated_errors(self.name):
            return await getattr(self._client, operation)(Bucket=self.options.bucket, **parameters)

    def full_key(self, key: str) -> str:
        return self._prefix + check_key(key)

    async def stat(self, key: str) -> ObjectInfo:
        reply = await self._call_if_bucket_exists("head_object", Key=self.full_key(key))
        return ObjectInfo(key, int(reply["ContentLength"]), reply["LastModified"].timestamp())

    async def _call_if_bucket_exists(self, operation: str, **parameters: Any) -> Any:
        """Runs an S3 operation on an object, and raises BucketNotFound instead of NoSuchFile if the bucket is missing.

        The HEAD reply has no body that would say which is missing.
        """
        try:
            return await self.call(operation, **parameters)
        except NoSuchFile:
            try:
                await self.call("head_bucket")
            except NoSuchFile:
                raise BucketNotFound(data={"bucket": self.options.bucket}) from None
            raise

    async def read(self, key: str, *, offset: int = 0, count: int | None = None) -> AsyncGenerator[bytes, None]:
        if count is not None and count <= 0:
            await self.stat(key)
            return
        last_byte = "" if count is None else offset + count - 1
        range_parameters = {"Range": f"bytes={offset}-{last_byte}"} if offset or count is not None else {}
        try:
            reply = await self.call("get_object", Key=self.full_key(key), **range_parameters)
        except _RangeBeyondEnd:
            return
        body = reply["Body"]
        try:
            remaining_bytes = int(reply["ContentLength"])
            while remaining_bytes > 0:
                with _translated_errors(self.name):
                    data = await body.read(CHUNK_BYTES)
                if not data:
                    raise ObjectStorageUnavailable("The object storage broke off in the middle of an object.")
                remaining_bytes -= len(data)
                yield data
        finally:
            body.close()

    async def list(self, prefix: str = "", *, limit: int = 1000, cursor: str | None = None) -> ObjectPage:
        start_after = {"StartAfter": self._prefix + cursor} if cursor else {}
        reply = await self.call(
            "list_objects_v2", Prefix=self._prefix + check_prefix(prefix), MaxKeys=min(limit, 1000), **start_after
        )
        objects = [
            ObjectInfo(entry["Key"].removeprefix(self._prefix), int(entry["Size"]), entry["LastModified"].timestamp())
            for entry in reply.get("Contents", ())
        ]
        return ObjectPage(objects, objects[-1].key if reply.get("IsTruncated") and objects else None)

    async def presign(self, key: str, *, expires_s: int, put_size: int | None = None) -> str:
        parameters: dict[str, Any] = {"Bucket": self.options.bucket, "Key": self.full_key(key)}
        operation = "get_object"
        if put_size is not None:
            if put_size > _MAX_COPY_BYTES:
                raise InvalidInput(
                    f"A presigned upload has at most {_MAX_COPY_BYTES} bytes.", data={"size": "too large"}
                )
            operation, parameters["ContentLength"] = "put_object", put_size
        with _translated_errors(self.name):
            url: str = await self._presigner.generate_presigned_url(operation, Params=parameters, ExpiresIn=expires_s)
        return url

    async def open_upload(self, key: str, *, size: int | None = None) -> ObjectUpload:
        full_key = self.full_key(key)
        part_size = max(self.options.part_size, math.ceil((size or 0) / (MAX_PARTS - 1)))
        upload = _MultipartUpload(self, full_key, part_size)
        async for key, upload_id in self._uploads(full_key):
            if key == full_key:
                await upload.resume(upload_id)
        return upload

    async def _uploads(self, prefix: str) -> AsyncGenerator[tuple[str, str], None]:
        page_markers: dict[str, str] = {}
        while True:
            page = await self.call("list_multipart_uploads", Prefix=prefix, **page_markers)
            for upload in page.get("Uploads", ()):
                yield upload["Key"], upload["UploadId"]
            if not page.get("IsTruncated"):
                return
            page_markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def abort_uploads(self, prefix: str) -> None:
        """Aborts the unfinished multipart uploads below a prefix.

        Servers that list them only by whole keys (MinIO) must do it themselves.
        """
        async for full_key, upload_id in self._uploads(self._prefix + check_prefix(prefix)):
            await self.abort(full_key, upload_id)

    async def abort(self, full_key: str, upload_id: str) -> None:
        with suppress(UploadNotFound, NoSuchFile):
            await self.call("abort_multipart_upload", Key=full_key, UploadId=upload_id)

    async def delete(self, keys: Sequence[str]) -> None:
        full_keys = [self.full_key(key) for key in keys]
        for batch_start in range(0, len(full_keys), _MAX_DELETED_KEYS):
            key_batch = [{"Key": key} for key in full_keys[batch_start : batch_start + _MAX_DELETED_KEYS]]
            reply = await self.call("delete_objects", Delete={"Objects": key_batch, "Quiet": True})
            for error in reply.get("Errors", ()):
                raise _error_from_code(error.get("Code", ""), 500, f"{self.name}: {error.get('Message', '')}")

    async def move(self, source: str, target: str) -> None:
        size = (await self.stat(source)).size
        full_key, copy_source = self.full_key(target), {"Bucket": self.options.bucket, "Key": self.full_key(source)}
        if size <= _MAX_COPY_BYTES:
            await self.call("copy_object", Key=full_key, CopySource=copy_source)
        else:
            await self._copy_parts(full_key, copy_source, size)
        await self.delete([source])

    async def _copy_parts(self, full_key: str, copy_source: dict[str, str], size: int) -> None:
        upload_id = (await self.call("create_multipart_upload", Key=full_key))["UploadId"]
        try:
            part_size = max(1 << 30, math.ceil(size / MAX_PARTS))
            parts = []
            for part_number, part_start in enumerate(range(0, size, part_size), start=1):
                copy_reply = await self.call(
                    "upload_part_copy",
                    Key=full_key,
                    UploadId=upload_id,
                    PartNumber=part_number,
                    CopySource=copy_source,
                    CopySourceRange=f"bytes={part_start}-{min(part_start + part_size, size) - 1}",
                )
                parts.append({"PartNumber": part_number, "ETag": copy_reply["CopyPartResult"]["ETag"]})
            await self.call(
                "complete_multipart_upload", Key=full_key, UploadId=upload_id, MultipartUpload={"Parts": parts}
            )
        except BaseException:
            await self.abort(full_key, upload_id)
            raise


class _MultipartUpload(ObjectUpload):
    """Uploads parts of one size; an incomplete part is held in memory."""

    def __init__(self, storage: S3Storage, full_key: str, part_size: int) -> None:
        self._storage, self._full, self._part_size = storage, full_key, part_size
        self._id: str | None = None
        self._parts: list[dict[str, Any]] = []
        self._buffer = bytearray()
        self.offset = 0

    async def resume(self, upload_id: str) -> None:
        """Resumes a multipart upload if it has more parts than the present upload; aborts the other upload."""
        parts, size = await self._parts_of(upload_id)
        if self._id is not None:
            worse_id = upload_id if size <= self.offset else self._id
            await self._storage.abort(self._full, worse_id)
            if worse_id == upload_id:
                return
        self._id, self._parts, self.offset = upload_id, parts, size

    async def _parts_of(self, upload_id: str) -> tuple[list[dict[str, Any]], int]:
        """Returns the parts of an upload before the first gap, and their size in bytes."""
        parts: list[dict[str, Any]] = []
        size, last_part_number = 0, 0
        while True:
            page = await self._storage.call(
                "list_parts", Key=self._full, UploadId=upload_id, PartNumberMarker=last_part_number
            )
            for part in page.get("Parts", ()):
                if part["PartNumber"] != len(parts) + 1 or part["Size"] < MIN_PART_BYTES:
                    return parts, size
                parts.append({"PartNumber": part["PartNumber"], "ETag": part["ETag"]})
                size += part["Size"]
            if not page.get("IsTruncated"):
                return parts, size
            last_part_number = page["NextPartNumberMarker"]

    async def write(self, data: bytes) -> None:
        self._buffer += data
        self.offset += len(data)
        while len(self._buffer) >= self._part_size:
            await self._send_part(self._part_size)

    async def _send_part(self, byte_count: int) -> None:
        if self._id is None:
            self._id = (await self._storage.call("create_multipart_upload", Key=self._full))["UploadId"]
        part_number = len(self._parts) + 1
        upload_reply = await self._storage.call(
            "upload_part",
            Key=self._full,
            UploadId=self._id,
            PartNumber=part_number,
            Body=bytes(memoryview(self._buffer)[:byte_count]),
        )
        self._parts.append({"PartNumber": part_number, "ETag": upload_reply["ETag"]})
        del self._buffer[:byte_count]

    async def publish(self) -> None:
        if not self._parts:
            await self._storage.call("put_object", Key=self._full, Body=bytes(self._buffer))
            await self.abort()  # one that never got a part
            return
        if self._buffer:
            await self._send_part(len(self._buffer))
        await self._storage.call(
            "complete_multipart_upload", Key=self._full, UploadId=self._id, MultipartUpload={"Parts": self._parts}
        )
        self._id = None

    async def close(self) -> None:
        self.offset -= len(self._buffer)
        self._buffer.clear()

    async def abort(self) -> None:
        self._buffer.clear()
        if self._id is not None:
            upload_id, self._id = self._id, None
            await self._storage.abort(self._full, upload_id)


class _RangeBeyondEnd(BackendError):
    pass


def _error_from_code(code: str, status: int, message: str) -> BackendError:
    if code in _ERRORS_BY_CODE:
        return _ERRORS_BY_CODE[code](data={"reason": message[:256]})
    if code == "InvalidRange":
        return _RangeBeyondEnd()
    if status >= 500 or code in ("SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError"):
        return ObjectStorageUnavailable(f"The object storage fails: {code or status}.")
    return ObjectStorageRefused(f"The object storage refuses: {code or status}.", data={"reason": message[:256]})


@contextmanager
def _translated_errors(name: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    try:
        yield
    except ClientError as e:
        status = int(e.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        error = e.response.get("Error", {})
        raise _error_from_code(str(error.get("Code", "")), status, f"{name}: {error.get('Message', '')}") from None
    except (NoCredentialsError, PartialCredentialsError):
        raise ObjectStorageRefused(f"There are no credentials for the object storage {name}.") from None
    except (BotoCoreError, aiohttp.ClientError, TimeoutError, ConnectionError) as e:
        raise ObjectStorageUnavailable(f"The object storage {name} does not answer: {type(e).__name__}.") from e
