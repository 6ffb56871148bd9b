"""Collects the metrics that agents report."""
