"""Provides a client of the Kubernetes API for the few kinds of objects that the platform watches and writes.

``client`` sends requests, ``reflector`` keeps copies of objects current, ``election`` elects one process of several,
``objects`` has the fields that are decoded, and ``configuration`` finds server and credentials.
"""
