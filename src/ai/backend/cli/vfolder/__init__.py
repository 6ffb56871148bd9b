"""Vfolder, quota."""
