"""The roles, accounts and admission policies that an installation of kube-acc needs besides its resources."""

from __future__ import annotations

from ai.backend.kubeacc.crd.definitions import to_yaml
from ai.backend.kubeacc.policies import admission, roles


def access_yaml() -> str:
    """Returns namespace, roles and admission policies, for kubectl apply --server-side -f -."""
    return to_yaml([roles.namespace(), *roles.manifests(), *admission.manifests()])


def chart_access_yaml() -> str:
    """Returns the text of ``deploy/helm/kube-acc/templates/access.yaml``: Helm makes the namespace."""
    objects = to_yaml([*roles.manifests(), *admission.manifests()])
    return f"# Written by `python -m tools.docs` from src/ai/backend/kubeacc/policies; do not edit.\n{objects}"
