"""Pulls the images of kernels and runs image jobs."""
