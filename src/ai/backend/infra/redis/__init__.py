"""Shares notifications and rate limits between processes through Redis or Valkey. No data there is durable."""
