package transfer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Markers are a node's outbound markers, as Reclaimer works on them. Source has them.
type Markers interface {
	// Marked returns every marker, by partition and move.
	Marked() []Marker
	// Latest returns a marker as it was updated last.
	Latest(m Marker) Marker
	// Update makes a changed marker durable.
	Update(m Marker) error
	// Forget removes a marker whose copy is gone.
	Forget(m Marker) error
}

// Reclaimer removes the copies that moves took away, and salvages those that a promotion left behind. Its
// fields are set before use; Step is safe for concurrent use, one call per marker at a time.
type Reclaimer struct {
	Node     cluster.NodeID
	Store    store.PartitionStore
	Control  ControlPlane
	Source   Markers
	Producer Producer
	// After returns for how long a copy is kept after all other conditions hold.
	After func() time.Duration
	// HTTP, BaseURL, Errors and Address reach the promoted owner, to learn where the copies differ.
	// Without Address, or when the owner does not know any more, everything is salvaged.
	HTTP    *http.Client
	BaseURL func(address string) string
	Errors  Errors
	Address func(cluster.NodeID) (string, bool)
	// Promoted, when set, asks the promoted owner in place of HTTP: which of the source's files its copy was made of, up to
	// which offset. false says that it does not know.
	Promoted func(ctx context.Context, m Marker, owner cluster.NodeID) (leo cluster.Offset, files []store.File, known bool, err error)
	// Log may be nil.
	Log *zap.Logger
	// Now is the monotonic time since some start; nil is the process clock.
	Now func() time.Duration

	mu struct {
		sync.Mutex
		// confirmed says since when the conditions have held for a copy.
		confirmed map[string]time.Duration
		clock     func() time.Duration
	}
}

const (
	// pollAfter is when a marker is looked at again whose conditions do not hold yet.
	pollAfter = time.Second
	// salvageBatch bounds one Produce, in records and in bytes of keys and values.
	salvageBatch      = 500
	salvageBatchBytes = 1 << 20
)

func (r *Reclaimer) now() time.Duration {
	if r.Now != nil {
		return r.Now()
	}
	r.mu.Lock()
	if r.mu.clock == nil {
		r.mu.clock = processClock()
	}
	now := r.mu.clock
	r.mu.Unlock()
	return now()
}

func (r *Reclaimer) log() *zap.Logger {
	if r.Log == nil {
		return zap.NewNop()
	}
	return r.Log
}

// Step does what can be done for one marker of Source.Ended. done says that nothing is left of it;
// otherwise retryAfter says when to come again.
//
// Invariant I9: everything that is destroyed was named by a linearizable read of this very call, by its
// identity.
func (r *Reclaimer) Step(ctx context.Context, m Marker) (done bool, retryAfter time.Duration, err error) {
	m = r.Source.Latest(m) // how far it was salvaged
	v, err := r.Control.ReadMove(ctx, m.Partition, m.MoveID)
	if err != nil {
		return false, pollAfter, fmt.Errorf("read move %d of %s: %w", m.MoveID, m.Partition, err)
	}
	switch {
	case v.Assignment == nil:
		// The topic is gone; who deletes topics takes the copy. Its id never comes again.
		return true, 0, r.Source.Forget(m)
	case v.State == MoveEnded && v.Outcome.Kind == cluster.OutcomeForced:
		return r.forced(ctx, m, v)
	case v.State == MoveEnded && v.Outcome.Kind == cluster.OutcomeFlipped:
		return r.flipped(ctx, m, v)
	case v.State == MoveForgotten && m.Salvaged:
		return r.finish(ctx, m, v, false)
	case v.State != MoveCurrent && !r.holds(m):
		// Cancelled, or reported before a crash: without the copy the marker has no meaning.
		return true, 0, r.Source.Forget(m)
	case v.State == MoveForgotten && !r.claimed(m):
		// Doubtful: a copy goes before its outcome does. So the data is kept, and somebody is told.
		return false, pollAfter, cluster.Errorf(cluster.ReasonBlocked, "the controllers know nothing of move %d any more, which took this copy (identity %d) away; "+
			"it is kept: when owner %s serves the whole partition, remove the copy's directory while this agent is stopped", m.MoveID, m.Identity, v.Assignment.Owner)
	}
	return false, pollAfter, nil
}

// claimed reports whether another marker names the same copy: of several moves one took the copy away, and its
// marker speaks for all.
func (r *Reclaimer) claimed(m Marker) bool {
	for _, o := range r.Source.Marked() {
		if o.Partition == m.Partition && o.Identity == m.Identity && o.MoveID > m.MoveID {
			return true
		}
	}
	return false
}

// copyOf finds the marker's copy by its identity, wherever it lies.
func (r *Reclaimer) copyOf(m Marker) (store.Copy, bool, error) {
	copies, err := CopiesOf(r.Store, m.Partition)
	for _, c := range copies {
		if c.Identity == m.Identity && c.Place != store.Staged {
			return c, true, err
		}
	}
	return store.Copy{}, false, err
}

func (r *Reclaimer) holds(m Marker) bool {
	_, ok, err := r.copyOf(m)
	return ok || err != nil
}

// flipped reclaims: the owner has opened the partition, this node is neither owner nor target, and the grace is
// over.
func (r *Reclaimer) flipped(ctx context.Context, m Marker, v MoveView) (bool, time.Duration, error) {
	c, ok, err := r.copyOf(m)
	if err != nil {
		return false, pollAfter, err
	}
	a := v.Assignment
	home := a.Owner == r.Node || a.Target == r.Node
	// When the partition has come home, the copy lies in quarantine, where no later one can be hit, and
	// the newer one must be open.
	if ok && (!v.Outcome.Opened || (home && (c.Place == store.Active || a.Owner != r.Node || !a.Opened))) {
		r.unconfirm(m)
		return false, pollAfter, nil
	}
	if wait := r.confirm(m); ok && wait > 0 {
		return false, wait, nil
	}
	return r.finish(ctx, m, v, true)
}

// confirm notes that the conditions hold, and returns how much of the grace is left.
func (r *Reclaimer) confirm(m Marker) time.Duration {
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.confirmed == nil {
		r.mu.confirmed = map[string]time.Duration{}
	}
	since, ok := r.mu.confirmed[m.key()]
	if !ok {
		since = now
		r.mu.confirmed[m.key()] = now
	}
	return since + r.After() - now
}

func (r *Reclaimer) unconfirm(m Marker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.mu.confirmed, m.key())
}

// finish deletes the copy, reports and forgets, in this order: what is repeated after a crash finds less to
// do.
func (r *Reclaimer) finish(ctx context.Context, m Marker, v MoveView, report bool) (bool, time.Duration, error) {
	if err := hit(faults.ReclaimConfirmed, m.Partition, m.MoveID, 0); err != nil {
		return false, pollAfter, err
	}
	c, ok, err := r.copyOf(m)
	if err == nil && ok {
		err = r.Store.Delete(m.Partition, c.Place, m.Identity)
	}
	if err != nil {
		return false, pollAfter, fmt.Errorf("delete the copy of move %d of %s: %w", m.MoveID, m.Partition, err)
	}
	// It may have been set aside since it was looked for, because the partition comes home: then nothing was deleted.
	if r.holds(m) {
		return false, pollAfter, nil
	}
	if err := hit(faults.ReclaimDeleted, m.Partition, m.MoveID, 0); err != nil {
		return false, pollAfter, err
	}
	if report {
		err := r.Control.ReportReclaimed(ctx, m.Partition, m.MoveID)
		// BLOCKED: the owner has not opened the partition. The record goes with the marker, later.
		if err != nil && (!Definite(err) || cluster.ReasonOf(err) == cluster.ReasonBlocked) {
			return false, pollAfter, fmt.Errorf("report reclaimed: %w", err)
		}
	}
	r.unconfirm(m)
	r.log().Info("copy reclaimed", append(logFields(m.Partition, m.MoveID), zap.Uint64("identity", uint64(m.Identity)))...)
	if err := r.Source.Forget(m); err != nil {
		return false, pollAfter, err
	}
	// Earlier moves of the same copy were cancelled; their markers go with it.
	for _, o := range r.Source.Marked() {
		if o.Partition == m.Partition && o.Identity == m.Identity {
			if err := r.Source.Forget(o); err != nil {
				return false, pollAfter, err
			}
		}
	}
	return true, 0, nil
}

// forced sets the copy aside, puts its records into the topic as new ones, and then lets it go.
func (r *Reclaimer) forced(ctx context.Context, m Marker, v MoveView) (bool, time.Duration, error) {
	c, ok, err := r.copyOf(m)
	if err != nil {
		return false, pollAfter, err
	}
	if !ok {
		return r.finish(ctx, m, v, true)
	}
	if c.Place == store.Active {
		if err := r.Store.Quarantine(m.Partition, m.Identity); err != nil {
			return false, pollAfter, fmt.Errorf("set aside the copy of move %d of %s: %w", m.MoveID, m.Partition, err)
		}
		if err := hit(faults.SalvageQuarantine, m.Partition, m.MoveID, 0); err != nil {
			return false, pollAfter, err
		}
	}
	if !m.Salvaged {
		if m, err = r.salvage(ctx, m, *v.Outcome); err != nil {
			return false, pollAfter, err
		}
	}
	if err := hit(faults.SalvageProduced, m.Partition, m.MoveID, 0); err != nil {
		return false, pollAfter, err
	}
	if m.Damage != "" {
		return false, pollAfter, cluster.Errorf(cluster.ReasonCorrupt, "what could be read of the copy in quarantine is salvaged, the rest is kept: %s; "+
			"repair its disk, or remove the copy's directory while this agent is stopped", m.Damage)
	}
	// Invariant I9: salvage took what the promoted copy never had. The rest is in that copy alone, so it must have
	// been opened before this one goes.
	if !v.Outcome.Opened {
		r.unconfirm(m)
		return false, pollAfter, nil
	}
	if wait := r.confirm(m); wait > 0 {
		return false, wait, nil
	}
	return r.finish(ctx, m, v, true)
}

// salvage produces every durable record from the first offset where the copies may differ. It goes on where
// it was; a batch that was produced and not noted comes twice.
func (r *Reclaimer) salvage(ctx context.Context, m Marker, o cluster.Outcome) (Marker, error) {
	from := m.SalvageAt
	if from == 0 {
		var err error
		if from, err = r.salvageFrom(ctx, m, o); err != nil {
			return m, err
		}
		if m, err = r.noteDamage(ctx, m, from); err != nil {
			return m, err
		}
	}
	var batch []store.Record
	var bytes int
	total := 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := r.Producer.Produce(ctx, m.Partition.Topic, batch); err != nil {
			return fmt.Errorf("produce salvaged records: %w", err)
		}
		total += len(batch)
		m.SalvageAt = batch[len(batch)-1].Offset + 1
		batch, bytes = nil, 0
		return r.Source.Update(m)
	}
	err := r.Store.ReadQuarantined(m.Partition, m.Identity, from, func(rec store.Record) error {
		rec.Key, rec.Value = append([]byte(nil), rec.Key...), append([]byte(nil), rec.Value...)
		batch = append(batch, rec)
		bytes += len(rec.Key) + len(rec.Value)
		if len(batch) >= salvageBatch || bytes >= salvageBatchBytes {
			return flush()
		}
		return ctx.Err()
	})
	if cluster.ReasonOf(err) == cluster.ReasonCorrupt {
		// Damage hides what lies in it and nothing around it.
		m.Damage, err = err.Error(), nil
	}
	if err == nil {
		err = flush()
	}
	if err != nil {
		return m, fmt.Errorf("salvage %s: %w", m.Partition, err)
	}
	m.Salvaged = true
	r.log().Warn("records salvaged from a copy that a promotion left behind", append(logFields(m.Partition, m.MoveID),
		zap.Uint64("from", uint64(from)), zap.Int("records", total))...)
	return m, r.Source.Update(m)
}

// noteDamage reads what is to be salvaged and notes, durably, whether some of it can't be read. It does so before anything
// counts as salvaged: an attempt that is cut off is continued behind what it produced, and would not see damage before that.
func (r *Reclaimer) noteDamage(ctx context.Context, m Marker, from cluster.Offset) (Marker, error) {
	err := r.Store.ReadQuarantined(m.Partition, m.Identity, from, func(store.Record) error { return ctx.Err() })
	if cluster.ReasonOf(err) == cluster.ReasonCorrupt {
		m.Damage = err.Error()
		return m, r.Source.Update(m)
	}
	if err != nil {
		return m, fmt.Errorf("read the copy in quarantine: %w", err)
	}
	return m, nil
}

// salvageFrom returns the first offset where the copies may differ.
func (r *Reclaimer) salvageFrom(ctx context.Context, m Marker, o cluster.Outcome) (cluster.Offset, error) {
	mine, err := r.Store.QuarantinedManifest(m.Partition, m.Identity)
	if cluster.ReasonOf(err) == cluster.ReasonCorrupt {
		r.log().Warn("the copy in quarantine is damaged; everything that can be read is salvaged",
			append(logFields(m.Partition, m.MoveID), zap.Error(err))...)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("describe the copy in quarantine: %w", err)
	}
	rec, err := r.askPromoted(ctx, m, o.Destination)
	switch {
	case errors.Is(err, errUnknownPromotion):
		r.log().Warn("the promoted owner can't say what its copy was made of; everything is salvaged", logFields(m.Partition, m.MoveID)...)
		return mine.LogStart, nil
	case err != nil:
		return 0, err
	}
	rec.LEO = min(rec.LEO, o.PromotedLEO)
	return firstDifference(mine, rec), nil
}

var errUnknownPromotion = errors.New("the promotion is not known there")

func (r *Reclaimer) askPromoted(ctx context.Context, m Marker, owner cluster.NodeID) (promotedRecord, error) {
	if r.Promoted != nil {
		leo, files, known, err := r.Promoted(ctx, m, owner)
		if err == nil && !known {
			err = errUnknownPromotion
		}
		return promotedRecord{LEO: leo, Files: files}, err
	}
	if r.Address == nil || r.HTTP == nil {
		return promotedRecord{}, errUnknownPromotion
	}
	address, ok := r.Address(owner)
	if !ok {
		// The node was removed, and with it its record.
		return promotedRecord{}, errUnknownPromotion
	}
	base := "http://" + address
	if r.BaseURL != nil {
		base = r.BaseURL(address)
	}
	c := nodev1connect.NewTransferServiceClient(connect.NewClient(connecthttp.NewTransport(r.HTTP, base, connecthttp.WithReadMaxBytes(maxMessageBytes))))
	call, cancel := context.WithTimeout(ctx, defaultCallTimeout)
	defer cancel()
	res, err := c.Manifest(call, &nodev1.ManifestRequest{Move: moveRef(m.Partition, m.MoveID)})
	if err != nil {
		err = r.Errors.fromWire(err)
		if cluster.ReasonOf(err) == cluster.ReasonMoveMismatch {
			return promotedRecord{}, errUnknownPromotion
		}
		return promotedRecord{}, fmt.Errorf("ask %s where the copies differ: %w", owner, err)
	}
	mf, err := manifestFromProto(res.GetManifest())
	return promotedRecord{LEO: mf.LEO, Files: mf.Files}, err
}

// Update journals a changed marker.
func (s *Source) Update(m Marker) error {
	if o := s.outbound(m.Partition, m.MoveID); o != nil {
		o.shared.Lock()
		o.shared.marker = m
		o.shared.Unlock()
	}
	return s.saveMarker(m)
}
