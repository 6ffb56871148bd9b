//go:build tools

// Package tools names the commands of gVisor that this module builds.
package tools

import (
	_ "gvisor.dev/gvisor/runsc"
	_ "gvisor.dev/gvisor/shim"
)
