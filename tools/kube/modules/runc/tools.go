//go:build tools

// Package tools names the commands of runc that this module builds.
package tools

import (
	_ "github.com/opencontainers/runc"
)
