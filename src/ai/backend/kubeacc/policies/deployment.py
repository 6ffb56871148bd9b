"""The text of ``deploy/kube-acc/access.yaml``."""

from __future__ import annotations

from ai.backend.kubeacc.crd.definitions import to_yaml
from ai.backend.kubeacc.policies import admission, roles


def access_yaml() -> str:
    """Returns roles and admission policies, for kubectl apply --server-side -f -."""
    objects = to_yaml([*roles.manifests(), *admission.manifests()])
    return f"# Written by `python -m tools.docs` from src/ai/backend/kubeacc/policies; do not edit.\n{objects}"
