package nodeagent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Bounds of the reconciler.
const (
	// taskTimeout ends a partition's task that makes no end; it is tried again.
	taskTimeout = time.Minute
	// maxCleanups bounds reclaims and salvages in progress. They are long and never urgent, so that they
	// have slots of their own.
	maxCleanups = 4
	retryMin    = 200 * time.Millisecond
	retryMax    = 30 * time.Second
)

// reconciler brings every partition of this node to what the view asks for. It is level-triggered: each
// look decides from the whole situation, so that a missed or doubled event changes nothing. A partition
// that fails is retried with a back-off of its own and holds up no other.
type reconciler struct {
	a    *Agent
	wake chan struct{}
	done chan taskResult

	mu struct {
		sync.Mutex
		dirty    map[cluster.PartitionID]bool
		all      bool
		epochs   map[cluster.PartitionID]cluster.Epoch
		problems map[taskKey]string
	}

	// Owned by run's goroutine.
	tasks    map[taskKey]*task
	queue    [2][]taskKey // by lane
	running  [2]int
	nextPass time.Time
}

// The lanes.
const (
	laneServe = iota
	laneCleanup
)

// taskKey names a partition's task; move is set for a reclaim.
type taskKey struct {
	p    cluster.PartitionID
	move cluster.MoveID
}

func (k taskKey) lane() int {
	if k.move != 0 {
		return laneCleanup
	}
	return laneServe
}

// task is the state of one key between its runs.
type task struct {
	marker  transfer.Marker // of a reclaim
	queued  bool
	running bool
	again   bool // looked at once more when the run in progress ends
	retryAt time.Time
	backoff time.Duration
	copies  []store.Copy
	// confirmedAt is when the removal of an identity was confirmed first.
	confirmedAt map[store.Identity]time.Time
}

type taskResult struct {
	key taskKey
	// retryAfter asks for another look; zero for none.
	retryAfter time.Duration
	problem    string
	err        error
}

func newReconciler(a *Agent) *reconciler {
	r := &reconciler{
		a:     a,
		wake:  make(chan struct{}, 1),
		done:  make(chan taskResult),
		tasks: map[taskKey]*task{},
	}
	r.mu.dirty = map[cluster.PartitionID]bool{}
	r.mu.epochs = map[cluster.PartitionID]cluster.Epoch{}
	r.mu.problems = map[taskKey]string{}
	return r
}

// touch has a partition looked at. Safe for concurrent use, like touchAll.
func (r *reconciler) touch(p cluster.PartitionID) {
	r.mu.Lock()
	r.mu.dirty[p] = true
	r.mu.Unlock()
	r.signal()
}

func (r *reconciler) touchAll() {
	r.mu.Lock()
	r.mu.all = true
	r.mu.Unlock()
	r.signal()
}

func (r *reconciler) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reconciler) setEpoch(p cluster.PartitionID, e cluster.Epoch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.epochs[p] = max(r.mu.epochs[p], e)
}

func (r *reconciler) epoch(p cluster.PartitionID) cluster.Epoch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.epochs[p]
}

func (r *reconciler) problemList() []Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Problem, 0, len(r.mu.problems))
	for k, text := range r.mu.problems {
		out = append(out, Problem{Partition: k.p, Text: text})
	}
	slices.SortFunc(out, func(a, b Problem) int { return a.Partition.Compare(b.Partition) })
	return out
}

// run reconciles until ctx ends, and waits for its tasks.
func (r *reconciler) run(ctx context.Context) {
	resync := time.NewTicker(r.a.cfg.ResyncInterval)
	defer resync.Stop()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		case <-resync.C:
			r.touchAll()
		case res := <-r.done:
			r.finish(res)
		}
		if ctx.Err() != nil {
			break
		}
		now := time.Now()
		if !now.Before(r.nextPass) {
			r.pass(now)
		}
		r.start(ctx)
		timer.Reset(r.until(time.Now()))
	}
	for r.running[laneServe]+r.running[laneCleanup] > 0 {
		r.finish(<-r.done)
	}
}

// until is how long nothing needs to be done.
func (r *reconciler) until(now time.Time) time.Duration {
	next := now.Add(r.a.cfg.ResyncInterval)
	r.mu.Lock()
	if r.mu.all || len(r.mu.dirty) > 0 {
		next = r.nextPass
	}
	r.mu.Unlock()
	for _, t := range r.tasks {
		if !t.retryAt.IsZero() && !t.queued && !t.running && t.retryAt.Before(next) {
			next = t.retryAt
		}
	}
	return max(0, next.Sub(now), r.nextPass.Sub(now))
}

// pass queues every partition that is dirty or due. It lists the copies of all of them first, and leaves
// four times as long as that took for other work.
func (r *reconciler) pass(now time.Time) {
	r.mu.Lock()
	dirty, all := r.mu.dirty, r.mu.all
	r.mu.dirty, r.mu.all = map[cluster.PartitionID]bool{}, false
	r.mu.Unlock()
	due := map[cluster.PartitionID]bool{}
	for k, t := range r.tasks {
		if !t.retryAt.IsZero() && !t.retryAt.After(now) {
			due[k.p] = true
		}
	}
	if !all && len(dirty)+len(due) == 0 {
		return
	}
	byPartition, err := r.copies(all, dirty, due)
	if err != nil {
		r.a.log.Error("copies can't be listed, retrying", zap.Error(err))
		r.touchAll()
		r.nextPass = now.Add(time.Second)
		return
	}
	r.nextPass = time.Now().Add(max(time.Millisecond, 4*time.Since(now)))
	if all {
		for p, copies := range byPartition {
			if slices.ContainsFunc(copies, func(c store.Copy) bool { return c.Open }) {
				r.a.configure(p)
			}
		}
	}
	for p := range r.candidates(all, dirty, due, byPartition) {
		r.enqueue(taskKey{p: p}, byPartition[p], dirty[p] || all, now)
	}
	ended := map[taskKey]bool{}
	for _, m := range r.a.source.Ended() {
		k := taskKey{m.Partition, m.MoveID}
		ended[k] = true
		r.task(k).marker = m
		r.enqueue(k, nil, dirty[m.Partition] || all, now)
	}
	for k, t := range r.tasks {
		if k.move != 0 && !ended[k] && !t.queued && !t.running {
			r.setProblem(k, "")
			delete(r.tasks, k)
		}
	}
}

// copies lists the copies of what is to be looked at.
func (r *reconciler) copies(all bool, sets ...map[cluster.PartitionID]bool) (map[cluster.PartitionID][]store.Copy, error) {
	out := map[cluster.PartitionID][]store.Copy{}
	if !all {
		for _, set := range sets {
			for p := range set {
				copies, err := transfer.CopiesOf(r.a.store, p)
				if err != nil {
					return nil, err
				}
				out[p] = copies
			}
		}
		return out, nil
	}
	copies, err := r.a.store.Copies()
	for _, c := range copies {
		out[c.Partition] = append(out[c.Partition], c)
	}
	return out, err
}

// candidates are the partitions to look at.
func (r *reconciler) candidates(all bool, dirty, due map[cluster.PartitionID]bool, copies map[cluster.PartitionID][]store.Copy) map[cluster.PartitionID]bool {
	out := map[cluster.PartitionID]bool{}
	for p := range dirty {
		out[p] = true
	}
	for p := range due {
		out[p] = true
	}
	if all {
		for p := range copies {
			out[p] = true
		}
		for p := range r.a.ownedSet() {
			out[p] = true
		}
	}
	return out
}

func (r *reconciler) task(k taskKey) *task {
	t := r.tasks[k]
	if t == nil {
		t = &task{confirmedAt: map[store.Identity]time.Time{}}
		r.tasks[k] = t
	}
	return t
}

// enqueue queues a task that is not in its back-off, or whose situation has changed. A task whose key is
// new has never been looked at.
func (r *reconciler) enqueue(k taskKey, copies []store.Copy, changed bool, now time.Time) {
	t := r.task(k)
	t.copies = copies
	switch {
	case t.running:
		t.again = t.again || changed
		return
	case t.queued:
		return
	case !changed && t.retryAt.After(now):
		return
	}
	t.queued = true
	t.retryAt = time.Time{}
	r.queue[k.lane()] = append(r.queue[k.lane()], k)
}

// start begins queued tasks while there are slots.
func (r *reconciler) start(ctx context.Context) {
	limit := [2]int{r.a.cfg.Workers, maxCleanups}
	for lane := range r.queue {
		for len(r.queue[lane]) > 0 && r.running[lane] < limit[lane] {
			k := r.queue[lane][0]
			r.queue[lane] = r.queue[lane][1:]
			t := r.tasks[k]
			t.queued = false
			if r.begin(ctx, k, t) {
				t.running = true
				r.running[lane]++
			}
		}
	}
}

// begin starts a task's goroutine, unless there is nothing to do.
func (r *reconciler) begin(ctx context.Context, k taskKey, t *task) bool {
	if k.move != 0 {
		marker := t.marker
		go func() { r.done <- r.reclaim(ctx, k, marker) }()
		return true
	}
	s := r.situation(k.p, t.copies)
	actions := Decide(s)
	if len(actions) == 0 {
		r.settle(k, t)
		return false
	}
	confirmed := t.confirmedAt
	go func() {
		tctx, cancel := context.WithTimeout(ctx, taskTimeout)
		defer cancel()
		r.done <- r.perform(tctx, k, actions, confirmed)
	}()
	return true
}

func (r *reconciler) situation(p cluster.PartitionID, copies []store.Copy) Situation {
	s := r.a.situation(p)
	s.Copies = copies
	s.OpenEpoch = r.epoch(p)
	s.Marked = r.a.markers(p)
	// A marker's own side reports its move.
	s.Cancelled = slices.DeleteFunc(s.Cancelled, func(m cluster.MoveID) bool { return r.a.source.Began(p, m) })
	s.Busy = r.a.mover.Busy(p)
	return s
}

// settle forgets a task that has come to rest.
func (r *reconciler) settle(k taskKey, t *task) {
	r.setProblem(k, "")
	if len(t.confirmedAt) == 0 {
		delete(r.tasks, k)
	}
}

func (r *reconciler) setProblem(k taskKey, text string) {
	r.mu.Lock()
	old := r.mu.problems[k]
	if text == "" {
		delete(r.mu.problems, k)
	} else {
		r.mu.problems[k] = text
	}
	r.mu.Unlock()
	if text != "" && text != old {
		r.a.log.Warn("partition is stuck, retrying", zap.Stringer("partition", k.p), zap.String("problem", text))
	}
}

// finish takes over a task's result.
func (r *reconciler) finish(res taskResult) {
	t := r.tasks[res.key]
	t.running = false
	r.running[res.key.lane()]--
	switch {
	case res.err != nil:
		t.backoff = min(max(2*t.backoff, retryMin), retryMax)
		t.retryAt = time.Now().Add(jitter(t.backoff))
		r.setProblem(res.key, res.err.Error())
	case res.retryAfter > 0:
		t.backoff = 0
		t.retryAt = time.Now().Add(res.retryAfter)
		r.setProblem(res.key, res.problem)
	default:
		t.backoff = 0
		r.setProblem(res.key, res.problem)
		if res.problem == "" && !t.again {
			delete(r.tasks, res.key)
		}
	}
	if t.again {
		t.again = false
		r.touch(res.key.p)
	}
}

// reclaim works on a copy that a move took away.
func (r *reconciler) reclaim(ctx context.Context, k taskKey, m transfer.Marker) taskResult {
	done, after, err := r.a.reclaimer.Step(ctx, m)
	res := taskResult{key: k, err: err}
	if err != nil {
		res.err = fmt.Errorf("reclaim after move %d: %w", k.move, err)
	}
	if !done && err == nil {
		res.retryAfter = max(after, 10*time.Millisecond)
	}
	return res
}
