package transfer_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// The source dies for good during the move, with records that the destination does not have. After the verdict
// the destination promotes its copy. When the source returns it serves nothing, sets its copy aside (C76),
// puts what the new owner never had into the topic as new records, hidden tail included, and only then lets
// the copy go.
func TestC76ForcedPromotionAndSalvage(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	want := fill(t, a, id, "kept", 30, 100)
	// The source answers Begin and copies, and then no freeze.
	var block atomic.Bool
	block.Store(true)
	p.setFault(func(n cluster.NodeID, method string, after bool) error {
		if n == "a" && method == "GrantHandoff" && !after && block.Load() {
			return errUnreachable
		}
		return nil
	})
	move := p.setTarget(id, "b")
	eventually(t, "everything is staged", func() bool {
		for _, m := range b.mover.Progress() {
			if m.Total > 0 && m.Done == m.Total && m.Attempt > 1 {
				return true
			}
		}
		return false
	})
	b.mover.SetSettings(b.settings)
	// From now on b reaches nothing of a, which acknowledges two more records and dies.
	inc, _ := a.session()
	_ = a.server.Close()
	late := fill(t, a, id, "late", 2, 100)
	a.kill()
	p.markDead("a", inc)
	moved(t, p, id, "b")
	checkHolds(t, b, id, want)
	o, ok := p.outcome(id, move)
	if !ok || o.Kind != cluster.OutcomeForced || o.PromotedLEO != 30 {
		t.Fatalf("outcome %+v, %t; want forced with 30 records", o, ok)
	}
	block.Store(false)
	a.boot()
	if err := a.append(id, "never"); err == nil {
		t.Fatal("the source accepts after a promotion")
	}
	a.register()
	eventually(t, "salvaged and reclaimed", func() bool {
		copies, err := a.store.Copies()
		_, recorded := p.outcome(id, move)
		return err == nil && len(copies) == 0 && !recorded && len(a.source.Marked()) == 0
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	var got []string
	for _, r := range a.salvaged {
		got = append(got, string(r.Value))
	}
	if !slices.Equal(got, late) {
		t.Errorf("salvaged %d records %.80q, want exactly the %d late ones", len(got), got, len(late))
	}
}

// C44, C77: the partition returns home before its stale copy was reclaimed. The stale copy is set aside, never
// served or mixed in, and reclaimed by its identity while the new one serves.
func TestC44HomeBeforeReclaim(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	want := fill(t, a, id, "r", 30, 100)
	var hold atomic.Bool
	hold.Store(true)
	a.reclaim.After = func() time.Duration {
		if hold.Load() {
			return time.Hour
		}
		return 0
	}
	p.setTarget(id, "b")
	moved(t, p, id, "b")
	eventually(t, "closed at a", func() bool { return len(a.openPartitions()) == 0 })
	want = append(want, fill(t, b, id, "at-b", 10, 100)...)
	p.setTarget(id, "a")
	moved(t, p, id, "a")
	checkHolds(t, a, id, want)
	if got, _ := a.read(id); len(got) != len(want) {
		t.Errorf("%d records at home, want %d", len(got), len(want))
	}
	hold.Store(false)
	eventually(t, "only the new copy is left", func() bool {
		copies, err := a.store.Copies()
		return err == nil && len(copies) == 1 && copies[0].Place == store.Active && copies[0].Open
	})
	if err := a.append(id, "still open"); err != nil {
		t.Error(err)
	}
}

// C80: the new owner dies between flip and opening. The source keeps its copy.
func TestC80NoReclaimBeforeTheOwnerOpened(t *testing.T) {
	p, a, b, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	fill(t, a, id, "r", 30, 100)
	died := make(chan struct{})
	var once atomic.Bool
	b.observeError("Open", func() error {
		if once.CompareAndSwap(false, true) {
			close(died)
		}
		return errCrash
	})
	p.setTarget(id, "b")
	<-died
	b.kill()
	eventually(t, "a knows that it is not the owner", func() bool { return len(a.source.Ended()) == 1 })
	for range 5 {
		done, _, err := a.reclaim.Step(t.Context(), a.source.Ended()[0])
		if done || err != nil {
			t.Fatalf("reclaimed before b has opened: %t, %v", done, err)
		}
	}
	if copies, err := a.store.Copies(); err != nil || len(copies) != 1 {
		t.Fatalf("copies at a: %v, %v", copies, err)
	}
}

// Bulk reads are refused before the registration, for another move, another incarnation, unknown files and
// ranges beyond what is synced.
func TestBulkReadsAreChecked(t *testing.T) {
	p, a, _, topic := pair(t, 1)
	id := cluster.PartitionID{Topic: topic}
	fill(t, a, id, "r", 10, 100)
	p.setFault(func(n cluster.NodeID, method string, after bool) error {
		if method == "GrantHandoff" {
			return errUnreachable
		}
		return nil
	})
	move := p.setTarget(id, "b")
	eventually(t, "begun", func() bool { return a.source.HasMarker(id) })
	m, err := a.store.Manifest(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := m.Files[0]
	get := func(change func(h http.Header), path string) int {
		t.Helper()
		url := "http://" + a.server.Addr + strings.NewReplacer("TOPIC", itoa(uint64(topic)), "FILE", f.Name).Replace(path)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		inc, _ := a.session()
		req.Header.Set(transfer.HeaderMoveID, itoa(uint64(move)))
		req.Header.Set(transfer.HeaderIncarnation, itoa(uint64(inc)))
		req.Header.Set(transfer.HeaderFileIdentity, f.Identity)
		req.Header.Set("Range", "bytes=0-9")
		change(req.Header)
		res, err := a.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	const good = "/transfer/v1/TOPIC/0/FILE"
	set := func(k, v string) func(http.Header) { return func(h http.Header) { h.Set(k, v) } }
	none := func(http.Header) {}
	for _, c := range []struct {
		name   string
		change func(http.Header)
		path   string
		want   int
	}{
		{"good", none, good, 206},
		{"beyond the synced end", set("Range", "bytes=0-99999999"), good, 416},
		{"two ranges", set("Range", "bytes=0-1,3-4"), good, 416},
		{"no range", set("Range", ""), good, 416},
		{"another move", set(transfer.HeaderMoveID, "1"), good, 409},
		{"another incarnation", set(transfer.HeaderIncarnation, "77"), good, 412},
		{"another file", set(transfer.HeaderFileIdentity, "x"), good, 412},
		{"no move", set(transfer.HeaderMoveID, ""), good, 400},
		{"unknown file", none, "/transfer/v1/TOPIC/0/nothing", 404},
		{"another partition", none, "/transfer/v1/TOPIC/9/FILE", 409},
		{"a way out", none, "/transfer/v1/TOPIC/0/..%2f..%2fx", 404},
	} {
		if got := get(c.change, c.path); got != c.want {
			t.Errorf("%s: HTTP %d, want %d", c.name, got, c.want)
		}
	}
	a.mu.Lock()
	a.reg = false
	a.mu.Unlock()
	if got := get(none, good); got != 503 {
		t.Errorf("C73: not registered: HTTP %d, want 503", got)
	}
}
