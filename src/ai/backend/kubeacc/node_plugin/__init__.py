"""The plugin of kube-acc on a node: offers the devices of accelerator plugins to the kubelet, and reports them."""
