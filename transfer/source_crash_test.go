package transfer_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// striker ends a source's goroutine at the k-th moment before or after an effect, once.
type striker struct {
	mu   sync.Mutex
	left int
	at   string
	died chan struct{}
}

func newStriker(k int) *striker { return &striker{left: k, died: make(chan struct{})} }

func (s *striker) observe(effect string, after bool) error {
	if effect == "Wait" {
		return nil // it changes nothing, and how many there are is chance
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left--
	if s.left != -1 {
		return nil
	}
	s.at = "before " + effect
	if after {
		s.at = "after " + effect
	}
	close(s.died)
	return errCrash
}

// where says at which moment the source died; empty while it lives.
func (s *striker) where() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

func (s *striker) struck() bool {
	select {
	case <-s.died:
		return true
	default:
		return false
	}
}

// firstFlipLost makes the flip of the first handoff impossible to send: the destination is silent and the source
// has to revoke. Later handoffs flip.
func firstFlipLost(p *plane, id cluster.PartitionID) {
	p.setFault(func(n cluster.NodeID, method string, after bool) error {
		if n != "b" || after || (method != "CompleteMove" && method != "RevokeHandoff") {
			return nil
		}
		if a := p.assignment(id); a.Granted && a.Handoff == 1 {
			return errUnreachable
		}
		return nil
	})
}

// C07, C09, I1, I2, I6, I7: the source dies before and after every single effect of its side of a move, in a move that
// flips at once, in one whose first freeze ends by a revocation, and in one that is cancelled while it is frozen
// and set again. What it had not synced is lost. Before it has registered it accepts nothing of what it may have
// given away; then the move ends, all that was acknowledged is at the owner, and the source lets its copy go.
func TestC07SourceDiesAroundEveryEffect(t *testing.T) {
	var mu sync.Mutex
	hit := map[string]bool{}
	t.Run("ways", func(t *testing.T) {
		for name, drive := range map[string]func(p *plane, id cluster.PartitionID) (cancel cluster.MoveID){
			"flips": func(p *plane, id cluster.PartitionID) cluster.MoveID {
				p.setTarget(id, "b")
				return 0
			},
			"revoked": func(p *plane, id cluster.PartitionID) cluster.MoveID {
				firstFlipLost(p, id)
				p.setTarget(id, "b")
				return 0
			},
			"cancelled": func(p *plane, id cluster.PartitionID) cluster.MoveID {
				firstFlipLost(p, id)
				return p.setTarget(id, "b")
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for k := 0; ; k++ {
					s := newStriker(k)
					sourceDies(t, s, drive)
					if !s.struck() {
						t.Logf("%d moments", k)
						return
					}
					mu.Lock()
					hit[s.where()] = true
					mu.Unlock()
					if k > 200 {
						t.Fatal("there is no end of effects")
					}
				}
			})
		}
	})
	for _, effect := range []string{"Grant", "Freeze", "Answer", "Revoke", "Thaw", "Redirect", "ReadMove", "Unmark"} {
		for _, when := range []string{"before ", "after "} {
			if !hit[when+effect] {
				t.Errorf("no source died %s%s", when, effect)
			}
		}
	}
}

// sourceDies runs one move with a death, or with none when the striker's moment does not come.
func sourceDies(t *testing.T, s *striker, drive func(*plane, cluster.PartitionID) cluster.MoveID) {
	t.Helper()
	p := newPlane(t)
	a, b := newNode(t, p, "a"), newNode(t, p, "b")
	a.observeSource = s.observe
	b.settings.HandoffTTL = 60 * time.Millisecond
	a.start()
	b.start()
	id := cluster.PartitionID{Topic: p.createTopic("t", "a")}
	eventually(t, "open", func() bool { return p.assignment(id).Opened })
	acked := fill(t, a, id, "r", 20, 500)
	cancel := drive(p, id)
	restarted, n := false, 0
	// try appends to whoever accepts, and notes what was acknowledged.
	try := func(x *node) {
		if v := fmt.Sprintf("during-%d", n); x.append(id, v) == nil {
			acked = append(acked, v)
			n++
		}
	}
	done := func() bool {
		if s.struck() && !restarted {
			restarted = true
			a.kill()
			a.boot()
			if err := a.append(id, "unfenced"); err == nil && len(a.source.Marked()) > 0 {
				t.Errorf("died %s: it accepts a marked partition's append before it has registered", s.where())
			}
			a.register()
		}
		if cancel != 0 && p.assignment(id).Granted {
			p.cancel(id, cancel)
			cancel = 0
		}
		if x := p.assignment(id); cancel == 0 && x.Owner == "a" && !x.Moving() && len(a.source.Marked()) == 0 {
			p.setTarget(id, "b")
		}
		try(a)
		try(b)
		copies, err := a.store.Copies()
		return err == nil && p.settled(id, "b") && len(copies) == 0 && len(a.source.Marked()) == 0
	}
	eventually(t, fmt.Sprintf("the end of a move whose source died %q", s.where()), done)
	checkHolds(t, b, id, acked)
	if err := b.append(id, "later"); err != nil {
		t.Errorf("died %s: append at the new owner: %v", s.where(), err)
	}
	if copies, err := b.store.Copies(); err != nil || len(copies) != 1 || copies[0].Place != store.Active {
		t.Errorf("died %s: copies at the new owner: %+v, %v", s.where(), copies, err)
	}
	a.kill()
	b.kill()
}
