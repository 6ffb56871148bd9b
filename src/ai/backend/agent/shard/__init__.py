"""A shard: one agent process that speaks for many nodes of a Kubernetes cluster, each of which is an agent."""
