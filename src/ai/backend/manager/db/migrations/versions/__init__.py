"""One line of revisions for all features."""
