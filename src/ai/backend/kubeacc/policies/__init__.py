"""Defines who may do what on which accelerator: co-existence, policies, admission, and roles."""
