"""Serves monitoring systems and administrators: scrape targets, the state of the installation, session reports."""
