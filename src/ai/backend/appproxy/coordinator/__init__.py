"""Implements the coordinator of the app proxy: chooses workers, keeps circuits, signs people in to apps
(spec 03-14)."""
