"""Defines device requests, which are typed expressions over the devices behind the slots of a session."""
