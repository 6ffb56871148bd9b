"""Implements the kubectl plug-in ``kubectl accelerators``. It needs the resources in the cluster, and no manager."""
