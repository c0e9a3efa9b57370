package fsm

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestC30FlapsAreCounted: verdicts that come soon after the return from the one before add up; the first one, and one after
// a long time, does not.
func TestC30FlapsAreCounted(t *testing.T) {
	s := &script{t: t, m: openTest(t, vfs.NewMem())}
	s.run("register id=a store=A inc=1 at=100")
	at, window := 200, int(cluster.FlapWindow/time.Second)
	for inc, tc := range []struct {
		wait int
		want uint32
	}{{10, 0}, {10, 1}, {window, 2}, {10, 3}, {window + 1, 0}, {10, 1}} {
		at += tc.wait
		s.run(fmt.Sprintf("dead id=a inc=%d at=%d", inc+1, at))
		at += 10
		s.run(fmt.Sprintf("register id=a store=A inc=%d at=%d", inc+2, at))
		s.m.Read(func(r Reader) {
			if n, _ := r.Node("a"); n.Flaps != tc.want || n.AliveSince.Unix() != int64(at) || n.JoinedAt.Unix() != 100 {
				t.Fatalf("verdict %d, %d s after the return: flaps %d, alive since %d, joined %d; want %d, %d, 100",
					inc+1, tc.wait, n.Flaps, n.AliveSince.Unix(), n.JoinedAt.Unix(), tc.want, at)
			}
		})
	}
	// A restart without a verdict is no return.
	s.run(fmt.Sprintf("register id=a store=A inc=8 at=%d", at+5))
	s.m.Read(func(r Reader) {
		if n, _ := r.Node("a"); n.AliveSince.Unix() != int64(at) {
			t.Fatal("a restart counts as a return from the dead")
		}
	})
}

// TestC30TheTimeOfAFlipStays: it is the proposer's clock at the flip, through later targets and cancellations.
func TestC30TheTimeOfAFlipStays(t *testing.T) {
	s := &script{t: t, m: openTest(t, vfs.NewMem())}
	moved := func() int64 {
		var a cluster.Assignment
		s.m.Read(func(r Reader) { a, _ = r.Assignment(cluster.PartitionID{Topic: 3}) })
		if a.MovedAt.IsZero() {
			return 0
		}
		return a.MovedAt.Unix()
	}
	for _, step := range []struct {
		line string
		want int64
	}{
		{"register id=a store=A inc=1", 0},
		{"register id=b store=B inc=1", 0},
		{"create name=t owners=a", 0},
		{"target p=t/0 to=b at=10", 0},
		{"grant p=t/0 node=a inc=1 nonce=x at=20", 0},
		{"flip p=t/0 handoff=1 nonce=x at=30", 30},
		{"opened p=t/0 node=b epoch=4 at=40", 30},
		{"target p=t/0 to=a at=50", 30},
		{"cancel p=t/0 at=60", 30},
	} {
		out := s.run(step.line)
		if got := moved(); got != step.want {
			t.Fatalf("after %q (%s) the partition moved at %d, want %d", step.line, out, got, step.want)
		}
	}
}
