package nodeagent

import (
	"container/heap"
	"time"
)

// retries orders tasks by when they are due. An entry counts only while its task has that very time: a task that was queued
// or forgotten since leaves its entry behind.
type retries []retry

type retry struct {
	at  time.Time
	key taskKey
}

func (q retries) Len() int           { return len(q) }
func (q retries) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q retries) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *retries) Push(x any) { *q = append(*q, x.(retry)) }

// Pop implements heap.Interface.
func (q *retries) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// retryAt has a task looked at again at a time.
func (r *reconciler) retryAt(k taskKey, t *task, at time.Time) {
	t.retryAt = at
	heap.Push(&r.retries, retry{at, k})
}

// nextRetry is when the first task is due.
func (r *reconciler) nextRetry() (time.Time, bool) {
	for len(r.retries) > 0 {
		first := r.retries[0]
		if t := r.tasks[first.key]; t != nil && t.retryAt.Equal(first.at) {
			return first.at, true
		}
		heap.Pop(&r.retries)
	}
	return time.Time{}, false
}

// takeDue returns the tasks that are due, and takes them out.
func (r *reconciler) takeDue(now time.Time) []taskKey {
	var out []taskKey
	for {
		at, ok := r.nextRetry()
		if !ok || at.After(now) {
			return out
		}
		out = append(out, heap.Pop(&r.retries).(retry).key)
	}
}
