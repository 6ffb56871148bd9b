//go:build tools

// Package tools names the commands of KWOK that this module builds.
package tools

import (
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
