//go:build tools

// Package tools names the commands of Helm and kubeconform that this module builds.
package tools

import (
	_ "github.com/yannh/kubeconform/cmd/kubeconform"
	_ "helm.sh/helm/v3/cmd/helm"
)
