// Command naradctl-plane is the control plane for single-owner partitions: its daemons and the tool that
// operators use.
//
//   - controller and agent are the daemons, dev runs some of both in one process on loopback;
//   - cluster, topic, produce and consume talk to running daemons;
//   - config and version talk to nobody.
//
// This package holds flags, wiring, signals and printing, and no rule: what the daemons do is in the
// packages that are wired here. The adapters between packages that do not know each other are here, too
// (adapter.go).
//
// Exit codes: 0 done, 1 error, 2 usage, 3 refused by a guard, 4 timed out waiting, 5 not found, 6 no leader.
//
// Files: root.go and exit.go (the command tree and how it ends), client.go and print.go (calls and output), one
// file for each command group, serve.go (a daemon's listener), controller.go, agent.go and dev.go (wiring).
package main

import (
	"context"
	"os"
)

func main() {
	os.Exit(execute(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
