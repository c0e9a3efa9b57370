// Package consensus is the contract of the ordered, durable command log that the controllers share:
// propose, barrier, leadership, membership. It knows nothing of partitions; commands and results are
// opaque to it.
//
// Backends: consensus/etcdraft (the default), consensus/memory (one process, for tests). All pass
// the suite in consensus/consensustest.
//
// Rules that every Backend upholds:
//
//   - Order: all members apply the same commands in the same order, each once.
//   - Durability: a proposal that was answered survives the loss of any minority of disks.
//   - Unknown outcome: a proposal that failed with ErrOutcomeUnknown may be applied now, later or
//     never; every other error means that it will never be applied.
//   - Barrier: when it returns nil, the local state machine has applied everything that was committed
//     anywhere before the call began.
//   - A state machine error or a broken log stops the backend (Done, Err); it never skips an entry.
package consensus

import (
	"context"
	"errors"
	"io"
)

// ID is a member's number; assigned once, never reused, never zero.
type ID uint64

// Role is a member's part in the configuration.
type Role uint8

// The values of Role.
const (
	Voter Role = iota + 1
	Learner
)

// String returns "voter" or "learner".
func (r Role) String() string {
	if r == Learner {
		return "learner"
	}
	return "voter"
}

// Member is one member of the configuration.
type Member struct {
	ID      ID
	Name    string
	Address string // host:port
	StoreID string
	Role    Role
}

// MemberStatus is a member with what the leader knows of it. Lag and Active are only meaningful at the
// leader.
type MemberStatus struct {
	Member
	// Lag is how many entries of the leader's log the member has not acknowledged.
	Lag uint64
	// Active says that the leader heard of the member within an election time-out.
	Active bool
}

// Status is a snapshot of a backend's state.
type Status struct {
	Self ID
	// Leader is zero when none is known.
	Leader       ID
	Term         uint64
	CommitIndex  uint64
	AppliedIndex uint64
	// Members are ordered by ID.
	Members []MemberStatus
}

// IsLeader reports whether this member believes that it leads.
func (s Status) IsLeader() bool { return s.Leader != 0 && s.Leader == s.Self }

// Errors of a Backend. Others are wrapped I/O errors and mean ErrOutcomeUnknown unless stated.
var (
	// ErrNotLeader: this member does not lead; the proposal will never be applied.
	ErrNotLeader = errors.New("consensus: not the leader")
	// ErrOutcomeUnknown: the proposal may be applied now, later or never.
	ErrOutcomeUnknown = errors.New("consensus: outcome unknown")
	// ErrStopped: the backend has stopped; proposals already made have unknown outcomes.
	ErrStopped = errors.New("consensus: stopped")
	// ErrBusy: too many proposals wait; this one will never be applied.
	ErrBusy = errors.New("consensus: too many proposals in flight")
	// ErrRemoved: this member was removed from the configuration.
	ErrRemoved = errors.New("consensus: this member was removed")
	// ErrNotReady: a learner is too far behind to be promoted, or no transferee is up to date.
	ErrNotReady = errors.New("consensus: member is not caught up")
)

// Entry is one committed entry for the state machine. At most one of Command and Metadata is set;
// when neither is, only the index advances.
type Entry struct {
	Index   uint64
	Command []byte
	// Metadata replaces the backend's own record, which the state machine stores and snapshots with
	// its data and hands back by Metadata.
	Metadata []byte
}

// StateMachine is what a backend drives. The backend calls Apply and Restore from one goroutine;
// the other methods may be called concurrently with them.
type StateMachine interface {
	// Apply applies entries in order. Effects, metadata and the applied index are one atomic write.
	// results has one element per entry; those without a command are nil. An error stops the backend.
	Apply(entries []Entry) (results []any, err error)
	// AppliedIndex is the index of the last applied entry; zero before the first.
	AppliedIndex() uint64
	// DurableIndex is the index up to which applied entries survive a crash. The log is compacted
	// only up to it.
	DurableIndex() uint64
	// Flush makes everything applied durable.
	Flush() error
	// Metadata returns the record of the last applied Entry with Metadata, or what Restore brought; nil
	// before the first.
	Metadata() []byte
	// Snapshot pins the present state. The caller closes it.
	Snapshot() (Snapshot, error)
	// Restore replaces the whole state, durably, by a stream that Snapshot.WriteTo wrote. When it fails
	// the old state is still whole, or the machine refuses to open until a Restore succeeds.
	Restore(r io.Reader) error
}

// Snapshot is a pinned state. It is streamed, never held in memory as a whole.
type Snapshot interface {
	Index() uint64
	Metadata() []byte
	io.WriterTo
	io.Closer
}

// Backend orders commands. All methods are safe for concurrent use.
type Backend interface {
	// Propose appends command to the log and waits until this member has applied it. It returns what
	// StateMachine.Apply returned for it, and its index.
	Propose(ctx context.Context, command []byte) (result any, index uint64, err error)
	// Barrier: see the package comment. It works on every member; concurrent calls share work.
	Barrier(ctx context.Context) error
	// LeaderBarrier is Barrier for the leader only: it returns the term in which this member led
	// when the barrier passed, having applied an entry of that term, with its leadership confirmed
	// after the call began. ErrNotLeader otherwise.
	LeaderBarrier(ctx context.Context) (term uint64, err error)
	// Status returns a snapshot, without I/O.
	Status() Status
	// Changed returns a channel that is closed at the next change of leader, term or membership.
	Changed() <-chan struct{}
	// AddLearner admits a member that receives the log and does not vote. Adding a present member
	// again with the same fields succeeds.
	AddLearner(ctx context.Context, m Member) error
	// Promote makes a caught-up learner a voter; ErrNotReady when it is behind. Promoting a voter succeeds.
	Promote(ctx context.Context, id ID) error
	// Remove removes a member for ever. Removing an absent one succeeds.
	Remove(ctx context.Context, id ID) error
	// TransferLeadership hands leadership to a voter; zero picks the most up-to-date other one. It
	// returns when another member leads, or with an error.
	TransferLeadership(ctx context.Context, to ID) error
	// Done is closed when the backend has stopped, by Stop or by itself.
	Done() <-chan struct{}
	// Err says why it stopped; nil before, and after Stop.
	Err() error
	// Stop ends all work, syncs and closes the log, and returns when everything has ended.
	Stop() error
}
