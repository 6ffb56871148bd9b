"""The plug-in of kubectl: ``kubectl accelerators``. It needs the resources in the cluster, and no manager."""
