package etcdraft

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

// bootstrapIndex is the log position that the bootstrap record stands for.
const (
	bootstrapIndex = 1
	bootstrapTerm  = 1
)

// FirstIndex is what BootstrapMetadata stands for: a state machine that holds it and has applied this index, with a fresh
// directory, is a first member's.
const FirstIndex = bootstrapIndex

// membership is the configuration as of one applied index. Immutable: a change makes a new one.
type membership struct {
	clusterID string
	conf      *raftpb.ConfState
	members   map[consensus.ID]consensus.Member
	removed   map[consensus.ID]bool
}

func emptyMembership(clusterID string) *membership {
	return &membership{
		clusterID: clusterID,
		conf:      &raftpb.ConfState{},
		members:   map[consensus.ID]consensus.Member{},
		removed:   map[consensus.ID]bool{},
	}
}

// membershipOf is the configuration that the first members start from.
func membershipOf(boot *raftv1.Bootstrap) *membership {
	ms := emptyMembership(boot.GetClusterId())
	for _, p := range boot.GetMembers() {
		m := memberFromProto(p)
		ms.members[m.ID] = m
		if m.Role == consensus.Learner {
			ms.conf.Learners = append(ms.conf.Learners, uint64(m.ID))
		} else {
			ms.conf.Voters = append(ms.conf.Voters, uint64(m.ID))
		}
	}
	return ms
}

// BootstrapMetadata is the metadata record that first members begin with, at index 1.
func BootstrapMetadata(clusterID string, members []consensus.Member) []byte {
	boot := &raftv1.Bootstrap{ClusterId: clusterID}
	for _, m := range members {
		boot.Members = append(boot.Members, memberToProto(m))
	}
	return membershipOf(boot).encode()
}

func (ms *membership) encode() []byte {
	conf, err := proto.Marshal(ms.conf)
	if err != nil {
		panic(err) // A message of two integer lists always marshals.
	}
	p := &raftv1.Membership{ConfState: conf, ClusterId: ms.clusterID}
	for _, m := range ms.sorted() {
		p.Members = append(p.Members, memberToProto(m))
	}
	for _, id := range slices.Sorted(maps.Keys(ms.removed)) {
		p.Removed = append(p.Removed, uint64(id))
	}
	// Replicas store this record, so it must be the same bytes everywhere.
	out, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		panic(err)
	}
	return out
}

func decodeMembership(raw []byte) (*membership, error) {
	var p raftv1.Membership
	if err := proto.Unmarshal(raw, &p); err != nil {
		return nil, fmt.Errorf("decode the membership record: %w", err)
	}
	ms := emptyMembership(p.GetClusterId())
	if err := proto.Unmarshal(p.GetConfState(), ms.conf); err != nil {
		return nil, fmt.Errorf("decode the configuration in the membership record: %w", err)
	}
	for _, m := range p.GetMembers() {
		c := memberFromProto(m)
		ms.members[c.ID] = c
	}
	for _, id := range p.GetRemoved() {
		ms.removed[consensus.ID(id)] = true
	}
	return ms, nil
}

// sorted returns the members by id.
func (ms *membership) sorted() []consensus.Member {
	out := make([]consensus.Member, 0, len(ms.members))
	for _, id := range slices.Sorted(maps.Keys(ms.members)) {
		out = append(out, ms.members[id])
	}
	return out
}

func (ms *membership) byName(name string) (consensus.Member, bool) {
	for _, m := range ms.sorted() {
		if m.Name == name {
			return m, true
		}
	}
	return consensus.Member{}, false
}

func (ms *membership) isVoter(id consensus.ID) bool {
	return slices.Contains(ms.conf.GetVoters(), uint64(id))
}

// errRefused marks a configuration change that every replica skips alike.
var errRefused = errors.New("configuration change refused")

// apply returns the membership after cc. An error wraps errRefused: the change is skipped, on all replicas
// alike, since it depends on nothing but the log.
func (ms *membership) apply(cc *raftpb.ConfChange) (*membership, error) {
	id := consensus.ID(cc.GetNodeId())
	next := &membership{
		clusterID: ms.clusterID,
		conf:      proto.Clone(ms.conf).(*raftpb.ConfState),
		members:   maps.Clone(ms.members),
		removed:   maps.Clone(ms.removed),
	}
	if ms.removed[id] {
		return nil, fmt.Errorf("%w: member id %d was removed and never comes back", errRefused, id)
	}
	switch cc.GetType() {
	case raftpb.ConfChangeAddLearnerNode:
		m, err := memberOfContext(cc)
		if err != nil {
			return nil, err
		}
		if err := ms.checkNew(m); err != nil {
			return nil, err
		}
		next.members[id] = m
		next.conf.Learners = insertSorted(next.conf.Learners, uint64(id))
	case raftpb.ConfChangeAddNode:
		m, ok := ms.members[id]
		if !ok {
			return nil, fmt.Errorf("%w: member %d is unknown; it has to be added as a learner first", errRefused, id)
		}
		m.Role = consensus.Voter
		next.members[id] = m
		next.conf.Learners = without(next.conf.Learners, uint64(id))
		next.conf.Voters = insertSorted(next.conf.Voters, uint64(id))
	case raftpb.ConfChangeRemoveNode:
		if _, ok := ms.members[id]; !ok {
			return nil, fmt.Errorf("%w: member %d is unknown", errRefused, id)
		}
		if ms.isVoter(id) && len(ms.conf.GetVoters()) == 1 {
			return nil, fmt.Errorf("%w: member %d is the last voter", errRefused, id)
		}
		delete(next.members, id)
		next.removed[id] = true
		next.conf.Learners = without(next.conf.Learners, uint64(id))
		next.conf.Voters = without(next.conf.Voters, uint64(id))
	default:
		return nil, fmt.Errorf("%w: unknown kind %v", errRefused, cc.GetType())
	}
	return next, nil
}

// checkNew says whether m may be admitted. The same record again is fine.
func (ms *membership) checkNew(m consensus.Member) error {
	if old, ok := ms.members[m.ID]; ok {
		if sameMember(old, m) && old.Role == consensus.Learner {
			return nil
		}
		return fmt.Errorf("%w: member id %d is taken by %s at %s with store id %s", errRefused, m.ID, old.Name, old.Address, old.StoreID)
	}
	for _, o := range ms.sorted() {
		if o.Name == m.Name || o.Address == m.Address || o.StoreID == m.StoreID {
			return fmt.Errorf("%w: member %d already has the name %s, the address %s or the store id %s; remove it first",
				errRefused, o.ID, m.Name, m.Address, m.StoreID)
		}
	}
	return nil
}

func sameMember(a, b consensus.Member) bool {
	return a.ID == b.ID && a.Name == b.Name && a.Address == b.Address && a.StoreID == b.StoreID
}

func memberOfContext(cc *raftpb.ConfChange) (consensus.Member, error) {
	var c raftv1.MemberContext
	if err := proto.Unmarshal(cc.GetContext(), &c); err != nil || c.GetMember() == nil {
		return consensus.Member{}, fmt.Errorf("%w: its context is not a member", errRefused)
	}
	m := memberFromProto(c.GetMember())
	m.Role = consensus.Learner
	if m.ID != consensus.ID(cc.GetNodeId()) || m.ID == 0 || m.Name == "" || m.Address == "" || m.StoreID == "" {
		return consensus.Member{}, fmt.Errorf("%w: a member needs an id, a name, an address and a store id", errRefused)
	}
	return m, nil
}

func insertSorted(ids []uint64, id uint64) []uint64 {
	i, ok := slices.BinarySearch(ids, id)
	if ok {
		return ids
	}
	return slices.Insert(ids, i, id)
}

func without(ids []uint64, id uint64) []uint64 {
	return slices.DeleteFunc(ids, func(x uint64) bool { return x == id })
}

func memberToProto(m consensus.Member) *raftv1.Member {
	return &raftv1.Member{
		Name: m.Name, RaftId: uint64(m.ID), Address: m.Address, StoreId: m.StoreID, Learner: m.Role == consensus.Learner,
	}
}

func memberFromProto(p *raftv1.Member) consensus.Member {
	m := consensus.Member{
		ID: consensus.ID(p.GetRaftId()), Name: p.GetName(), Address: p.GetAddress(), StoreID: p.GetStoreId(), Role: consensus.Voter,
	}
	if p.GetLearner() {
		m.Role = consensus.Learner
	}
	return m
}
