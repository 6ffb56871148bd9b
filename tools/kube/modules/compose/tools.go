//go:build tools

// Package tools names the command of Docker Compose that this module builds.
package tools

import (
	_ "github.com/docker/compose/v2/cmd"
)
