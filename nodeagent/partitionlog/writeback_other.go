//go:build !linux

package partitionlog

import "github.com/cockroachdb/pebble/v2/vfs"

// startWriteback is a hint that this platform does not take.
func startWriteback(vfs.File, int64, int64) {}
