"""NVIDIA's GPUs: slots ``cuda.device``, ``cuda.shares`` and ``cuda.device:<size>-mig``."""

from ai.backend.accelerator.cuda.plugin import CudaPlugin

__all__ = ["CudaPlugin"]
