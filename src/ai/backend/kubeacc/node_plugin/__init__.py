"""Implements the node plugin of kube-acc, which offers the devices of accelerator plugins to the kubelet and reports
them."""
