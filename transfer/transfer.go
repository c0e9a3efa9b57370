package transfer

import (
	"context"
	"io"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// ControlPlane is what a move asks of the controllers.
//
// An error that holds a *cluster.Error of a reason other than NO_LEADER, LIMIT and BUG is a definite
// refusal: the command was applied and changed nothing. Every other error means that the outcome is
// unknown: the command may be applied later (I8).
type ControlPlane interface {
	// GrantHandoff asks for the right to freeze, as the source of the move in its incarnation. The
	// same hash in the same incarnation is answered like the first time.
	GrantHandoff(ctx context.Context, p cluster.PartitionID, move cluster.MoveID,
		incarnation cluster.Incarnation, hash cluster.NonceHash) (cluster.Handoff, error)
	// RevokeHandoff makes flips of a handoff impossible, or says how the move ended.
	RevokeHandoff(ctx context.Context, p cluster.PartitionID, move cluster.MoveID,
		handoff cluster.Handoff, reason string) (Revocation, error)
	// CompleteMove flips. Repeating it after success succeeds.
	CompleteMove(ctx context.Context, p cluster.PartitionID, move cluster.MoveID,
		handoff cluster.Handoff, nonce cluster.Nonce) (cluster.Outcome, error)
	// ForceCompleteMove flips away from a dead source. Repeating it after success succeeds.
	ForceCompleteMove(ctx context.Context, req ForceRequest) (cluster.Outcome, error)
	// ReadMove is a linearizable read of a partition and of one move of it; move may be zero.
	ReadMove(ctx context.Context, p cluster.PartitionID, move cluster.MoveID) (MoveView, error)
	// ReportOpened says that this node owns and serves the partition. move and stats are zero and nil
	// without a move.
	ReportOpened(ctx context.Context, p cluster.PartitionID, epoch cluster.Epoch,
		move cluster.MoveID, stats *cluster.MoveStats) error
	// ReportReclaimed says that this node, the source, has nothing left of an ended move.
	ReportReclaimed(ctx context.Context, p cluster.PartitionID, move cluster.MoveID) error
}

// ForceRequest asks for a promotion without a freeze.
type ForceRequest struct {
	Partition cluster.PartitionID
	MoveID    cluster.MoveID
	// SourceIncarnation is the one that the copy came from.
	SourceIncarnation cluster.Incarnation
	// StagedLEO is the exclusive end of the verified copy.
	StagedLEO cluster.Offset
	// ReadHWM is the highest high watermark that was read from the source.
	ReadHWM    cluster.Offset
	AcceptLoss bool
}

// Revocation is the definite answer to RevokeHandoff.
type Revocation struct {
	// Revoked says that no flip of the handoff can happen any more and that none has.
	Revoked bool
	// Outcome is how the move had ended already; nil otherwise.
	Outcome *cluster.Outcome
	// Assignment is the present one; nil when the topic is gone.
	Assignment *cluster.Assignment
}

// MoveState is what a linearizable read says of one move.
type MoveState uint8

// The values of MoveState; zero when no move was asked for.
const (
	// MoveCurrent: the move is the partition's present one.
	MoveCurrent MoveState = iota + 1
	// MoveEnded: the move has ended and its outcome is recorded.
	MoveEnded
	// MoveForgotten: neither current nor recorded. It was cancelled, or was reclaimed, long ago.
	MoveForgotten
)

// MoveView is a linearizable read.
type MoveView struct {
	// Assignment is nil when the topic does not exist.
	Assignment *cluster.Assignment
	State      MoveState
	// Outcome is nil unless State is MoveEnded.
	Outcome *cluster.Outcome
	// Owner is the owner's record; nil with the assignment.
	Owner *cluster.Node
}

// Journal keeps small values under string keys, durably. The keys of this package begin with "move/"
// and "outbound/"; values are opaque. Safe for concurrent use.
type Journal interface {
	// Save sets a value; it is synced when Save returns nil.
	Save(key string, value []byte) error
	// Delete removes a key, if it is there. It need not be synced: what comes back is dealt with again.
	Delete(key string) error
	// Load returns every key with the prefix.
	Load(prefix string) (map[string][]byte, error)
}

// Session says in which incarnation the node is and whether the control plane has accepted it. While
// it has not, the node answers neither Begin nor PrepareHandoff (I7).
type Session func() (incarnation cluster.Incarnation, registered bool)

// Producer puts salvaged records into a topic as new ones. They are durable when it returns nil.
type Producer interface {
	Produce(ctx context.Context, topic cluster.TopicID, records []store.Record) error
}

// Errors translates between domain errors and what the RPC layer carries. Nil functions change nothing.
type Errors struct {
	// ToWire is applied to what a handler returns, FromWire to what a client got.
	ToWire, FromWire func(error) error
}

func (e Errors) toWire(err error) error {
	if err == nil || e.ToWire == nil {
		return err
	}
	return e.ToWire(err)
}

func (e Errors) fromWire(err error) error {
	if err == nil || e.FromWire == nil {
		return err
	}
	return e.FromWire(err)
}

// MoverConfig is what a Mover needs. Fields without a remark are required.
type MoverConfig struct {
	Node    cluster.NodeID
	Store   store.PartitionStore
	Control ControlPlane
	Journal Journal
	// HTTP dials sources for RPCs and bulk reads. It must have no overall time-out: time-outs are on
	// no progress.
	HTTP *http.Client
	// BaseURL makes a URL from a node's address; nil is "http://" + address.
	BaseURL func(address string) string
	// Errors may be zero.
	Errors Errors
	// Settings to begin with; see SetSettings.
	Settings cluster.Settings
	// Open serves a copy that has arrived; nil is the store's own. A node that is a source too sets it to
	// Source.Owned: a copy that a later move has taken hold of is not opened again by an earlier one.
	Open func(p cluster.PartitionID, epoch cluster.Epoch) error
	// OnOpened, when set, is called after a moved partition was opened here. It must not block.
	OnOpened func(p cluster.PartitionID, epoch cluster.Epoch)
	// OnClosedStale, when set, is called after a stale copy was set aside for an arriving one.
	OnClosedStale func(p cluster.PartitionID)
	// OnFinished, when set, is called when a move has come to its end here. It must not block.
	OnFinished func(p cluster.PartitionID, move cluster.MoveID, stats cluster.MoveStats)
	// FreeDisk, when set, returns the free bytes of the store's disk: a copy that does not fit is
	// reported as blocked before bytes are pulled.
	FreeDisk func() (cluster.Bytes, error)
	// Log may be nil.
	Log *zap.Logger
	// Now is the monotonic time since some start; nil is the process clock.
	Now func() time.Duration

	// Streams bounds the files in flight of one move; zero is 4.
	Streams int
	// ProgressTimeout ends a pull or a call that makes no progress; zero is 10 s.
	ProgressTimeout time.Duration
	// CallTimeout bounds a call to the control plane; zero is 5 s.
	CallTimeout time.Duration
	// Observe, when set, is called before an effect is performed, with its name; an error stops the
	// move's goroutine as a crash would. For tests.
	Observe func(p cluster.PartitionID, effect string) error
}

// SourceConfig is what a Source needs. Fields without a remark are required.
type SourceConfig struct {
	Node    cluster.NodeID
	Store   store.PartitionStore
	Control ControlPlane
	Journal Journal
	Session Session
	// Errors may be zero.
	Errors Errors
	// OnRedirected, when set, is called after a partition was closed because it has moved away. It must
	// not block.
	OnRedirected func(p cluster.PartitionID)
	// OnEnded, when set, is called when Ended has another marker. It must not block.
	OnEnded func(p cluster.PartitionID)
	// Log may be nil.
	Log *zap.Logger
	// Now is the monotonic time since some start; nil is the process clock.
	Now func() time.Duration
	// Random makes nonces; nil is crypto/rand.
	Random io.Reader
	// CallTimeout bounds a call to the control plane; zero is 5 s.
	CallTimeout time.Duration
	// FreezeTimeout bounds the wait for the append in progress; zero is 10 s.
	FreezeTimeout time.Duration
	// Observe, when set, is called before and after an effect is performed, with its name; an error
	// stops the move's goroutine as a crash would. For tests.
	Observe func(p cluster.PartitionID, effect string, after bool) error
}
