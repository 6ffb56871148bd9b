"""Manages session and cluster templates, and creates sessions from templates."""
