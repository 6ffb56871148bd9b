"""Implements the driver of OpenStack: Cyborg has the accelerators, Placement counts them, Glance has the images."""
