//go:build tools

// Package tools names the programs of Docker's engine that this module builds.
package tools

import (
	_ "github.com/moby/moby/v2/cmd/docker-proxy"
	_ "github.com/moby/moby/v2/cmd/dockerd"
)
