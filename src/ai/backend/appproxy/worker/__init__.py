"""Implements the worker of the app proxy, which serves circuits to browsers and clients."""
