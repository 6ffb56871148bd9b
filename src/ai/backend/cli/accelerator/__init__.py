"""Accelerator."""
