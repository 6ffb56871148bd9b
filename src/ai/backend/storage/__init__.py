"""The storage proxy: serves folders on volumes, file transfers and artifacts."""
