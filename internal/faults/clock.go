//go:build faults && clock

package faults

import "time"

// The clock of such a binary is made by test/chaos/clock.sh: a standard library whose wall clock is off by time.WallStep
// seconds. The monotonic clock is as it was, as when an administrator sets the time.
func init() { setWallStep = func(seconds int64) { time.WallStep = seconds } }
