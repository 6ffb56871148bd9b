"""The scheduling loop, snapshots, fair share."""
