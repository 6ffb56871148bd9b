// Command etcd is the server of etcd: the module that has its main package is not served as a module.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
