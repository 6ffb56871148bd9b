"""System interfaces: cgroups, netlink, ipsec, seccomp, proc."""
