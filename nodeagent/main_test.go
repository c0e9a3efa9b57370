package nodeagent

import (
	"testing"

	"go.uber.org/goleak"
)

// Every goroutine of an agent has an owner who waits for it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
