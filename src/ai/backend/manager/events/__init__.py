"""Streams session events to clients and posts them to webhooks."""
