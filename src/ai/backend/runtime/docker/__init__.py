"""The Docker runtime: workloads as containers of a Docker engine. It needs the extra ``docker``."""
