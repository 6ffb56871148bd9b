"""Calls system interfaces of Linux: cgroups, netlink, IPsec, seccomp, proc, mounts."""
