package etcdraft

import (
	"fmt"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
	"google.golang.org/protobuf/proto"

	"github.com/naradctl/naradctl-plane/consensus"
	raftv1 "github.com/naradctl/naradctl-plane/proto/naradplane/raft/v1"
)

// promoteLag is how many entries a learner may be behind to be made a voter.
const promoteLag = 100

// Members returns the configuration as of the last applied entry, by id. Safe for concurrent use.
func (d *Driver) Members() []consensus.Member { return d.members.Load().sorted() }

// Removed reports whether a member was removed, as far as this one has applied. Safe for concurrent use.
func (d *Driver) Removed(id consensus.ID) bool { return d.members.Load().removed[id] }

// ConfState is raft's form of Members. It is not to be modified. Safe for concurrent use.
func (d *Driver) ConfState() *raftpb.ConfState { return d.members.Load().conf }

// CheckChange says whether cc would be skipped when it is applied to the present configuration.
func (d *Driver) CheckChange(cc *raftpb.ConfChange) error {
	_, err := d.members.Load().apply(cc)
	return err
}

// LearnerChange admits m as a learner; nil when it is a member already.
func (d *Driver) LearnerChange(m consensus.Member) (*raftpb.ConfChange, error) {
	m.Role = consensus.Learner
	if old, ok := d.members.Load().members[m.ID]; ok && sameMember(old, m) {
		return nil, nil
	}
	raw, err := proto.Marshal(&raftv1.MemberContext{Member: memberToProto(m)})
	if err != nil {
		return nil, fmt.Errorf("encode the member: %w", err)
	}
	return &raftpb.ConfChange{Type: raftpb.ConfChangeAddLearnerNode.Enum(), NodeId: new(uint64(m.ID)), Context: raw}, nil
}

// VoterChange makes a learner a voter; nil when it is one. ErrNotReady when it is behind, or not active: not heard of within
// an election time-out. Only the leader can say.
func (d *Driver) VoterChange(id consensus.ID, active bool) (*raftpb.ConfChange, error) {
	m, ok := d.members.Load().members[id]
	if ok && m.Role == consensus.Voter {
		return nil, nil
	}
	cc := &raftpb.ConfChange{Type: raftpb.ConfChangeAddNode.Enum(), NodeId: new(uint64(id))}
	if !ok {
		return cc, nil // Refused by membership.apply, with the reason.
	}
	pr, ok := d.progress()[uint64(id)]
	if !ok || pr.State != tracker.StateReplicate || !active || d.lag(pr) > promoteLag {
		return nil, consensus.ErrNotReady
	}
	return cc, nil
}

// RemoveChange removes a member; nil when it is none.
func (d *Driver) RemoveChange(id consensus.ID) *raftpb.ConfChange {
	if _, ok := d.members.Load().members[id]; !ok {
		return nil
	}
	return &raftpb.ConfChange{Type: raftpb.ConfChangeRemoveNode.Enum(), NodeId: new(uint64(id))}
}

// SnapshotMessage makes m, raft's request to send a snapshot, say what is really sent: the state as of snap, which is never
// older than m. Safe for concurrent use.
func (d *Driver) SnapshotMessage(m *raftpb.Message, snap consensus.Snapshot) (*raftpb.Message, error) {
	term, err := d.log.Term(snap.Index())
	if err != nil {
		return nil, fmt.Errorf("look up the term of index %d: %w", snap.Index(), err)
	}
	ms, err := decodeMembership(snap.Metadata())
	if err != nil {
		return nil, err
	}
	out := proto.Clone(m).(*raftpb.Message)
	out.Snapshot = &raftpb.Snapshot{Metadata: &raftpb.SnapshotMetadata{Index: new(snap.Index()), Term: new(term), ConfState: ms.conf}}
	return out, nil
}

// TransferLeadership asks a voter to take over. The outcome shows in Status.
func (d *Driver) TransferLeadership(to consensus.ID) { d.rn.TransferLeader(uint64(to)) }

// progress is the leader's view of the members; empty elsewhere.
func (d *Driver) progress() map[uint64]tracker.Progress {
	out := map[uint64]tracker.Progress{}
	if !d.leads() {
		return out
	}
	d.rn.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) { out[id] = pr })
	return out
}

func (d *Driver) lag(pr tracker.Progress) uint64 {
	if pr.Match >= d.lastIndex {
		return 0
	}
	return d.lastIndex - pr.Match
}
