package nodeagent

import (
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// Tasks are due in the order of their times, whatever the order in which they failed; one that was queued, forgotten or put
// off since is not due at its earlier time, and none is due twice.
func TestRetriesAreDueOnce(t *testing.T) {
	r := &reconciler{tasks: map[taskKey]*task{}}
	now := time.Now()
	key := func(i uint32) taskKey { return taskKey{p: cluster.PartitionID{Topic: 1, Index: i}} }
	for i, after := range []time.Duration{5, 1, 3, 2, 4} {
		k := key(uint32(i))
		r.retryAt(k, r.task(k), now.Add(after*time.Second))
	}
	if at, ok := r.nextRetry(); !ok || !at.Equal(now.Add(time.Second)) {
		t.Fatalf("the first is due at %v, %t", at, ok)
	}
	delete(r.tasks, key(1))                                    // forgotten
	r.tasks[key(3)].retryAt = time.Time{}                      // queued
	r.retryAt(key(2), r.tasks[key(2)], now.Add(6*time.Second)) // put off
	if got := r.takeDue(now.Add(3 * time.Second)); len(got) != 0 {
		t.Errorf("due after 3 s are %v, want none", got)
	}
	got := r.takeDue(now.Add(time.Minute))
	want := []taskKey{key(4), key(0), key(2)}
	if len(got) != len(want) {
		t.Fatalf("due are %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("due are %v, want %v", got, want)
		}
	}
	if got := r.takeDue(now.Add(time.Hour)); len(got) != 0 {
		t.Errorf("due again are %v", got)
	}
}
