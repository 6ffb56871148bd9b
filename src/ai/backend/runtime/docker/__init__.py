"""The Docker runtime: workloads as containers of a Docker engine (docs/reference/docker-runtime).

The runtime itself is :class:`ai.backend.runtime.docker.runtime.DockerRuntime`; it needs the extra ``docker``.
"""
