"""The resources of kube-acc as Python types, and the definitions that are generated from them."""
