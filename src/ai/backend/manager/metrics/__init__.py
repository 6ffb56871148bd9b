"""Collects and keeps the metrics that agents report."""
