package etcdraft

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

const identityLimit = 1 << 20

// findBootstrap finds the record that this first member starts from. All listed members have to be reached,
// so that all of them make the same record, or learn it from one that has it.
func (n *Node) findBootstrap(ctx context.Context, sm consensus.StateMachine) (*raftv1.Bootstrap, error) {
	if boot := n.dir.bootstrap(); boot != nil {
		return boot, nil // Found before a crash.
	}
	if raw := sm.Metadata(); raw != nil && sm.AppliedIndex() == bootstrapIndex {
		ms, err := decodeMembership(raw)
		if err != nil {
			return nil, err
		}
		boot := &raftv1.Bootstrap{ClusterId: ms.clusterID}
		for _, m := range ms.sorted() {
			boot.Members = append(boot.Members, memberToProto(m))
		}
		return boot, nil // Likewise.
	}
	peers := n.cfg.InitialMembers
	if len(peers) == 0 {
		peers = []Peer{{Name: n.cfg.Name, Address: n.cfg.AdvertiseAddress}}
	}
	return n.poll(ctx, peers)
}

// poll asks all peers in rounds until one round reaches everybody and finds what the round before found. Two
// alike rounds, since a member that is wiped between two others' rounds would give them different records.
func (n *Node) poll(ctx context.Context, peers []Peer) (*raftv1.Bootstrap, error) {
	var previous *raftv1.Bootstrap
	var complained time.Time
	pause := time.NewTicker(n.cfg.TickInterval)
	defer pause.Stop()
	for {
		ids, missing := n.identities(ctx, peers)
		boot, err := n.conclude(peers, ids)
		switch {
		case err != nil:
			return nil, err
		case boot != nil && (proto.Equal(boot, previous) || len(peers) == 1):
			return boot, nil
		case len(missing) > 0 && time.Since(complained) > 5*time.Second:
			complained = time.Now()
			n.log.Info("waiting for the other first members", zap.Strings("missing", missing))
		}
		previous = boot
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the other first members (missing: %s): %w", strings.Join(missing, "; "), ctx.Err())
		}
	}
}

// identities asks all peers at once. missing says who did not answer, and why.
func (n *Node) identities(ctx context.Context, peers []Peer) (ids []*raftv1.Identity, missing []string) {
	ids = make([]*raftv1.Identity, len(peers))
	errs := make([]error, len(peers))
	var wg sync.WaitGroup
	for i, p := range peers {
		if p.Name == n.cfg.Name {
			ids[i] = &raftv1.Identity{Name: n.cfg.Name, StoreId: n.dir.storeID, Address: n.cfg.AdvertiseAddress}
			continue
		}
		wg.Go(func() { ids[i], errs[i] = n.identity(ctx, p) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", peers[i].Name, err))
		}
	}
	return ids, missing
}

func (n *Node) identity(ctx context.Context, p Peer) (*raftv1.Identity, error) {
	ctx, cancel := context.WithTimeout(ctx, max(n.cfg.electionTimeout(), time.Second))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, n.transport.url(p.Address, pathIdentity), nil)
	if err != nil {
		return nil, err
	}
	resp, err := n.transport.client.Do(req)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, identityLimit))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(raw)))
	}
	id := &raftv1.Identity{}
	if err := proto.Unmarshal(raw, id); err != nil {
		return nil, fmt.Errorf("decode an identity: %w", err)
	}
	if id.GetName() != p.Name {
		return nil, fmt.Errorf("%s answers as %q, listed is %q; check initial_members", p.Address, id.GetName(), p.Name)
	}
	return id, nil
}

// conclude returns the record that follows from the answers; nil when some are missing.
func (n *Node) conclude(peers []Peer, ids []*raftv1.Identity) (*raftv1.Bootstrap, error) {
	members := make([]*raftv1.Member, 0, len(peers))
	for i, id := range ids {
		if id == nil {
			continue
		}
		if id.GetClusterId() != "" {
			return n.adopt(&raftv1.Bootstrap{ClusterId: id.GetClusterId(), Members: id.GetMembers()}, peers[i].Name)
		}
		members = append(members, &raftv1.Member{
			Name: id.GetName(), RaftId: uint64(i + 1), Address: id.GetAddress(), StoreId: id.GetStoreId(),
		})
	}
	if len(members) < len(peers) {
		return nil, nil
	}
	boot := &raftv1.Bootstrap{Members: members}
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(boot)
	if err != nil {
		return nil, fmt.Errorf("encode the bootstrap record: %w", err)
	}
	sum := sha256.Sum256(raw)
	boot.ClusterId = hex.EncodeToString(sum[:16])
	return boot, nil
}

// adopt takes the record of a peer that is part of a cluster already, if it knows this store.
func (n *Node) adopt(boot *raftv1.Bootstrap, from string) (*raftv1.Bootstrap, error) {
	i := slices.IndexFunc(boot.GetMembers(), func(m *raftv1.Member) bool { return m.GetName() == n.cfg.Name })
	if i < 0 || boot.GetMembers()[i].GetStoreId() != n.dir.storeID {
		return nil, n.refuseForeign(boot, "controller "+from)
	}
	return boot, nil
}

// refuseForeign says why a fresh directory can't take the place of the one that the cluster knows.
func (n *Node) refuseForeign(boot *raftv1.Bootstrap, by string) error {
	remedy := fmt.Sprintf("run `naradctl-plane cluster controllers remove %s` against a running controller, then start this one with --join", n.cfg.Name)
	for _, m := range boot.GetMembers() {
		if m.GetName() == n.cfg.Name {
			return fmt.Errorf("%w: %s knows %q with store id %s, but the directory %s has store id %s: its disk was wiped, or is "+
				"another's; if the old data is lost, %s", ErrForeignStore, by, n.cfg.Name, m.GetStoreId(), n.cfg.DataDir, n.dir.storeID, remedy)
		}
	}
	return fmt.Errorf("%w: %s belongs to cluster %s, whose first members do not include %q; to add this controller, start it with --join",
		ErrForeignStore, by, boot.GetClusterId(), n.cfg.Name)
}
