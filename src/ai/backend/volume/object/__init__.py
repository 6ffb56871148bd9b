"""Object storage backends: a directory, and servers that speak S3."""
