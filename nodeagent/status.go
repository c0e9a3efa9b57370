package nodeagent

import (
	"context"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

func (a *Agent) report(all bool) *planev1.HeartbeatRequest {
	req := &planev1.HeartbeatRequest{}
	a.reporter.fill(req, all)
	for _, m := range a.mover.Progress() {
		req.Moves = append(req.Moves, wire.MoveProgressToProto(m))
	}
	// The refusal is looked at before the depth, and must have stood for a while: a produce that was let
	// in just before it is in the queue by then.
	closed := a.ingressClosed()
	if a.plane.Ingress != nil {
		n, b := a.plane.Ingress.Depth()
		req.IngressRecords, req.IngressBytes = n, uint64(b)
	}
	req.IngressClosed = closed
	return req
}

// ingressGrace is how long produce must have been refused before the ingress queue counts as closed.
const ingressGrace = time.Second

func (a *Agent) ingressClosed() bool {
	refused := a.AcceptsProduce() != nil
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !refused:
		a.mu.refusedSince = time.Time{}
	case a.mu.refusedSince.IsZero():
		a.mu.refusedSince = time.Now()
	}
	return refused && time.Since(a.mu.refusedSince) >= ingressGrace
}

// housekeep measures the disk and saves the cache, beside the heartbeats.
func (a *Agent) housekeep(ctx context.Context) {
	for {
		m, err := a.measure()
		if err != nil {
			a.log.Warn("copies could not be measured, reporting the last sizes", zap.Error(err))
		} else {
			a.reporter.set(m)
		}
		a.saveCache()
		if !sleep(ctx, a.cfg.HeartbeatInterval) {
			return
		}
	}
}

// measure gathers from the store and the disk. Marked partitions' high watermarks are those of their
// synced manifests; known leaves out digests that nobody needs here.
func (a *Agent) measure() (measured, error) {
	m := measured{
		at:       time.Now(),
		sizes:    map[cluster.PartitionID]cluster.Bytes{},
		outbound: map[cluster.PartitionID]cluster.Offset{},
	}
	// A file system that can't tell (one in memory) reports nothing.
	if du, err := a.deps.FS.GetDiskUsage(a.cfg.DataDir); err == nil {
		m.diskTotal, m.diskFree = cluster.Bytes(du.TotalBytes), cluster.Bytes(du.AvailBytes)
	}
	copies, err := a.store.Copies()
	if err != nil {
		return m, err
	}
	owned := a.ownedSet()
	for _, c := range copies {
		switch {
		case c.Place == store.Quarantined:
			m.quarantined++
		case c.Place == store.Active && owned[c.Partition]:
			m.sizes[c.Partition] = c.Bytes
			if a.source.HasMarker(c.Partition) {
				if mf, err := a.store.Manifest(c.Partition, nil); err == nil {
					m.outbound[c.Partition] = mf.HWM
				}
			}
		}
	}
	return m, nil
}

func (a *Agent) saveCache() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.mu.cacheDirty || !a.mu.synced {
		return
	}
	if err := a.db.SaveView(a.mu.view, a.cfg.NodeID); err != nil {
		a.log.Warn("view not cached", zap.Error(err))
		return
	}
	a.mu.cacheDirty = false
}

// markers lists the identities of a partition's marked copies.
func (a *Agent) markers(p cluster.PartitionID) []store.Identity {
	var out []store.Identity
	for _, m := range a.source.MarkersOf(p) {
		out = append(out, m.Identity)
	}
	return out
}

func (a *Agent) freeDisk() (cluster.Bytes, error) {
	du, err := a.deps.FS.GetDiskUsage(a.cfg.DataDir)
	return cluster.Bytes(du.AvailBytes), err
}

func (a *Agent) ownedSet() map[cluster.PartitionID]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := map[cluster.PartitionID]bool{}
	for p, as := range a.mu.view.Assignments {
		if as.Owner == a.cfg.NodeID {
			out[p] = true
		}
	}
	return out
}

// drained reports whether this node is draining and owns nothing.
func (a *Agent) drained() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.mu.synced || !a.mu.self.Draining {
		return false
	}
	for _, as := range a.mu.view.Assignments {
		if as.Owner == a.cfg.NodeID {
			return false
		}
	}
	return true
}

// AcceptsProduce returns nil, or a ReasonBlocked error that names other agents when this one is being
// decommissioned and owns nothing any more.
func (a *Agent) AcceptsProduce() error {
	if !a.drained() {
		return nil
	}
	others := a.otherAgents(3)
	err := cluster.Errorf(cluster.ReasonBlocked, "node %s is being decommissioned and owns nothing any more: produce to another agent: %s",
		a.cfg.NodeID, strings.Join(others, ", "))
	err.Blockers = others
	return err
}

// otherAgents returns addresses of living agents that are not draining.
func (a *Agent) otherAgents(n int) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []string
	for _, node := range a.mu.view.Nodes {
		if node.ID != a.cfg.NodeID && node.Status == cluster.NodeAlive && !node.Draining {
			out = append(out, node.Address)
		}
	}
	slices.Sort(out)
	return out[:min(n, len(out))]
}

// Ready returns why this agent is not ready to serve; nothing when it is.
func (a *Agent) Ready() []string {
	var out []string
	if p := a.session.Problem(); p != "" {
		out = append(out, "session: "+p)
	}
	a.mu.Lock()
	synced := a.mu.synced
	a.mu.Unlock()
	if !synced {
		out = append(out, "watch: no view of the cluster yet")
	}
	if err := a.AcceptsProduce(); err != nil {
		out = append(out, err.Error())
	}
	return out
}

// Problem is something about one partition that keeps this agent from doing what is asked of it.
type Problem struct {
	Partition cluster.PartitionID
	// Name is "topic/index", or the ids when the topic is not known.
	Name string
	Text string
}

// Problems returns the partitions' problems, in order. Others are served meanwhile.
func (a *Agent) Problems() []Problem {
	out := a.rec.problemList()
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range out {
		out[i].Name = a.mu.view.PartitionName(out[i].Partition)
	}
	return out
}
