"""The configuration files of a cluster's daemons."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.kube.authority import Pair
from tools.kube.images import PAUSE_IMAGE
from tools.kube.place import Addresses


def write_kubeconfig(target: Path, server: str, authority: Path, user: Pair) -> Path:
    """Write a kubeconfig by which ``user`` reaches ``server``; it names files, and holds no keys."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [
            {"name": "u", "user": {"client-certificate": str(user.certificate), "client-key": str(user.key)}},
        ],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    target.write_text(json.dumps(content))
    return target


def write_audit_policy(target: Path) -> Path:
    """Write a policy by which every request is recorded with its object, but for secrets."""
    rules = [
        {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets", "serviceaccounts/token"]}]},
        {"level": "Request", "omitStages": ["RequestReceived"]},
    ]
    target.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
    return target


def write_kubelet(
    target: Path,
    addresses: Addresses,
    *,
    folder: Path,
    socket: Path,
    authority: Path,
    serving: Pair,
    feature_gates: Mapping[str, bool],
    further: Mapping[str, Any],
) -> Path:
    """Write the kubelet's configuration; ``further`` are fields of KubeletConfiguration that go before ours.

    It runs on control groups of either version, never evicts for the disk or the memory of the machine that it shares
    with others, and leaves the packet filter alone.
    """
    resolver = folder / "resolv.conf"
    resolver.write_text("options ndots:1\n")
    content: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": addresses.cgroup,
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "podLogsDir": str(folder / "pod-logs"),
        "resolvConf": str(resolver),
        "serializeImagePulls": False,
        "nodeStatusReportFrequency": "10s",
        "featureGates": dict(feature_gates),
        **further,
    }
    target.write_text(json.dumps(content))
    return target


def write_containerd(
    target: Path, addresses: Addresses, *, folder: Path, socket: Path, plugins: Path, gvisor_config: Path | None
) -> Path:
    """Write containerd's configuration, and that of the pods' network: a bridge whose addresses this machine reaches.

    OOM scores are bounded by what this process may set: machines without CAP_SYS_RESOURCE refuse lower ones.
    """
    network = folder / "cni"
    network.mkdir(exist_ok=True)
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": addresses.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": str(folder / "cni-addresses"),
        },
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    chain = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, portmap]}
    (network / "10-pods.conflist").write_text(json.dumps(chain))
    runtimes = {"runc": ("io.containerd.runc.v2", "", "SystemdCgroup = false")}
    if gvisor_config is not None:
        options = f'TypeUrl = "io.containerd.runsc.v1.options"\nConfigPath = {json.dumps(str(gvisor_config))}'
        # By annotations a pod says which of its volumes its containers share inside of gVisor.
        runtimes["runsc"] = ("io.containerd.runsc.v1", 'pod_annotations = ["dev.gvisor.*"]\n', options)
    text = f"""
version = 3
root = {json.dumps(str(folder / "containerd"))}
state = "/run/containerd"
[grpc]
address = {json.dumps(str(socket))}
[ttrpc]
address = {json.dumps(str(socket) + ".ttrpc")}
[plugins."io.containerd.cri.v1.images".registry]
config_path = {json.dumps(str(folder / "registries"))}
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = {json.dumps(PAUSE_IMAGE)}
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
enable_cdi = true
cdi_spec_dirs = [{json.dumps(str(folder / "cdi"))}]
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [{json.dumps(str(plugins))}]
conf_dir = {json.dumps(str(network))}
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
"""
    for name, (kind, further, options) in runtimes.items():
        table = f'plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}'
        text += f'[{table}]\nruntime_type = "{kind}"\n{further}[{table}.options]\n{options}\n'
    target.write_text(text)
    return target
