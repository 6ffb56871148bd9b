"""Object storage backends: a directory, and servers that speak S3."""

from ai.backend.volume.object.directory import DirectoryStorage
from ai.backend.volume.object.s3 import S3Storage

__all__ = ["DirectoryStorage", "S3Storage"]
