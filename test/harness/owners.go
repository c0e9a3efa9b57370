package harness

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/watchcheck"
)

// Owners follows the watch streams of all controllers and checks their promises, those of package watchcheck, and that every
// controller names the same owner for an epoch.
type Owners struct {
	wg      sync.WaitGroup
	watches watchcheck.Log
	mu      struct {
		sync.Mutex
		owners     map[ownership]string
		violations []string
		flips      int
	}
}

type ownership struct {
	topic uint64
	index uint32
	epoch uint64
}

// WatchOwners follows the controllers at addresses until ctx ends.
func WatchOwners(ctx context.Context, addresses []string) *Owners {
	o := &Owners{}
	o.mu.owners = map[ownership]string{}
	for _, a := range addresses {
		stream := o.watches.Stream(a)
		o.wg.Go(func() {
			var after uint64
			for ctx.Err() == nil {
				after = o.follow(ctx, a, stream, after)
				select {
				case <-ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	return o
}

// follow reads one stream to its end and returns the revision to resume after; zero starts from a snapshot.
func (o *Owners) follow(ctx context.Context, address string, record *watchcheck.Stream, after uint64) uint64 {
	stream, err := ClientsOf(address).WatchRoutes(ctx, &planev1.WatchRoutesRequest{AfterRevision: after})
	if err != nil {
		return after
	}
	record.Open(after)
	for {
		m, err := stream.Receive()
		if err != nil {
			if after > 0 && isCompacted(err) {
				return 0
			}
			return after
		}
		switch e := m.GetEvent().(type) {
		case *planev1.WatchRoutesResponse_Snapshot:
			o.note(address, e.Snapshot.GetChanges())
			record.Snapshot(m.GetRevision(), e.Snapshot.GetFirst(), e.Snapshot.GetLast())
			if e.Snapshot.GetLast() {
				after = m.GetRevision()
			}
		case *planev1.WatchRoutesResponse_Delta:
			record.Delta(m.GetRevision(), content(e.Delta))
			after = m.GetRevision()
			o.note(address, e.Delta.GetChanges())
		case *planev1.WatchRoutesResponse_Progress:
			record.Progress(m.GetRevision())
			after = m.GetRevision()
		}
	}
}

func (o *Owners) note(address string, changes []*planev1.Change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range changes {
		a := c.GetAssignment()
		if a == nil {
			continue
		}
		k := ownership{a.GetPartition().GetTopicId(), a.GetPartition().GetIndex(), a.GetOwnerEpoch()}
		switch before, ok := o.mu.owners[k]; {
		case !ok:
			o.mu.owners[k] = a.GetOwner()
			o.mu.flips++
		case before != a.GetOwner():
			o.mu.violations = append(o.mu.violations, fmt.Sprintf("%s: %d/%d at epoch %d is owned by %s and by %s",
				address, k.topic, k.index, k.epoch, before, a.GetOwner()))
		}
	}
}

// content is what a revision changes, alike on every stream.
func content(d *planev1.Delta) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		panic(err) // it came off the wire
	}
	return string(b)
}

// Violations returns what broke a promise so far.
func (o *Owners) Violations() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := append([]string(nil), o.mu.violations...)
	for _, v := range o.watches.Check() {
		out = append(out, v.String())
	}
	return out
}

// Wait waits for the watchers' end, after their ctx has ended.
func (o *Owners) Wait() { o.wg.Wait() }
