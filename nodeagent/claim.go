package nodeagent

import (
	"context"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// claimPart bounds one part of the claims.
const claimPart = 1000

// claim tells controllers that were restored from a backup what lies on this node's disk, which is newer than what they know: each
// copy that is served or was set aside, and the moves that may have taken it over. Invariant I7: marked partitions are fenced by
// then, so that what is claimed stays true until the answer.
func (a *Agent) claim(ctx context.Context, inc cluster.Incarnation) error {
	claims, topics, err := a.claims()
	if err != nil {
		return err
	}
	req := func() *planev1.ClaimPartitionsRequest {
		return &planev1.ClaimPartitionsRequest{NodeId: string(a.cfg.NodeID), Incarnation: uint64(inc)}
	}
	// Topics first: a claim of a topic that the backup does not have counts only when it is known.
	for len(topics) > 0 {
		n := min(len(topics), claimPart)
		part := req()
		part.Topics, topics = topics[:n], topics[n:]
		if err := a.control.claim(ctx, part); err != nil {
			return err
		}
	}
	for last := false; !last; {
		n := min(len(claims), claimPart)
		part := req()
		part.Claims, claims = claims[:n], claims[n:]
		last = len(claims) == 0
		part.Last = last
		if err := a.control.claim(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) claims() (claims []*planev1.CopyClaim, topics []*planev1.Topic, err error) {
	copies, err := a.store.Copies()
	if err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	view := a.mu.view
	a.mu.Unlock()
	seen := map[cluster.TopicID]bool{}
	for _, c := range copies {
		if c.Place == store.Staged {
			continue // of a move that has not flipped
		}
		forced, err := transfer.Promoted(a.db.Journal(), c.Partition, cluster.MoveID(c.Identity))
		if err != nil {
			return nil, nil, err
		}
		claim := &planev1.CopyClaim{
			Partition: wire.PartitionToProto(c.Partition), Identity: uint64(c.Identity),
			Active: c.Place == store.Active && c.Pending == nil, Forced: forced,
		}
		for _, m := range a.source.MarkersOf(c.Partition) {
			if m.Identity == c.Identity {
				claim.Markers = append(claim.Markers, &planev1.OutboundMove{MoveId: uint64(m.MoveID), Destination: string(m.Destination)})
			}
		}
		claims = append(claims, claim)
		if id := c.Partition.Topic; !seen[id] {
			seen[id] = true
			a.mu.Lock()
			if t, ok := view.Topics[id]; ok {
				topics = append(topics, wire.TopicToProto(t))
			}
			a.mu.Unlock()
		}
	}
	return claims, topics, nil
}
