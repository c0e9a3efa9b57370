// Package store declares PartitionStore, what a data plane must offer to have its partitions moved,
// and the types that cross that border. Its conformance suite is transfer/store/storetest.
//
// A store keeps one directory per copy of a partition. A copy is in one of four places:
//
//   - active: the real place; served when it is open, or waiting with a pending-flip marker;
//   - staged: bytes of a running or ended move, one directory per move;
//   - quarantined: set aside, never served, to be salvaged or removed;
//   - nowhere: a partition that was never written has no files, and moves like all others.
//
// Every copy has an identity: the move that brought it, or the topic's id after an initial placement.
// Destruction and renames name the identity, so that they can't hit a copy that has taken its place.
//
// Durability: each method that changes something has synced files and directories when it returns nil,
// unless it says otherwise. All methods are safe for concurrent use; those on one Staging only as far as it says.
package store

import (
	"context"
	"io"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// BlockSize is the length of a digest block in bytes.
const BlockSize = 1 << 20

// File is one file of a copy as a manifest lists it.
type File struct {
	// Name is a plain name without separators.
	Name string
	// Identity differs when a file of the same name was made anew.
	Identity string
	// Size is the synced length.
	Size cluster.Bytes
	// BaseOffset is the first offset that the file holds.
	BaseOffset cluster.Offset
	// Sealed files never change.
	Sealed bool
	// Blocks are the XXH3-64 digests of each block of BlockSize; the last covers up to Size.
	Blocks []uint64
	// LastRecordTime is the newest record's time in Unix milliseconds; zero without records.
	LastRecordTime int64
}

// GroupOffset is a consumer group's committed offset.
type GroupOffset struct {
	Group  string
	Offset cluster.Offset
}

// Manifest lists everything that belongs to a partition. Files are ordered by BaseOffset, groups by name.
type Manifest struct {
	Files    []File
	LEO      cluster.Offset // exclusive
	HWM      cluster.Offset // exclusive, at most LEO
	LogStart cluster.Offset
	Groups   []GroupOffset
}

// Bytes is the sum of the files' sizes.
func (m Manifest) Bytes() cluster.Bytes {
	var n cluster.Bytes
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// FreezeToken names the freeze.
type FreezeToken struct {
	MoveID  cluster.MoveID
	Handoff cluster.Handoff
}

// Identity names a copy: the MoveID that brought it, or the TopicID after an initial placement. Both are
// revisions, so they never collide for one partition.
type Identity uint64

// Place says where a copy is.
type Place uint8

// The values of Place.
const (
	Active Place = iota + 1
	Staged
	Quarantined
)

// String returns the place's name.
func (p Place) String() string {
	switch p {
	case Active:
		return "active"
	case Staged:
		return "staged"
	case Quarantined:
		return "quarantined"
	}
	return "unknown"
}

// Pending is the pending-flip marker of an installed copy whose flip is not known to be committed.
type Pending struct {
	MoveID  cluster.MoveID
	Handoff cluster.Handoff
}

// Copy describes one directory.
type Copy struct {
	Partition cluster.PartitionID
	Place     Place
	Identity  Identity
	// Pending is set while the copy waits for its flip.
	Pending *Pending
	// Open says that the copy is being served.
	Open bool
	// Bytes is what its files hold.
	Bytes cluster.Bytes
}

// ReadFile reads a file of an active copy, up to the length that was synced when it was opened. It stays
// readable when retention removes the file.
type ReadFile interface {
	io.ReaderAt
	io.Closer
	// Size is the synced length at the time of opening.
	Size() int64
}

// Record is a record of a log.
type Record struct {
	Offset cluster.Offset
	// Time in Unix milliseconds.
	Time  int64
	Key   []byte
	Value []byte
}

// PartitionStore is what a data plane must offer to be moved.
type PartitionStore interface {
	// Copies lists every directory, ordered by partition, place, identity.
	Copies() ([]Copy, error)
	// Create makes an empty active copy with an identity, not open. It succeeds when that very copy is
	// there; a copy of another identity in the place is an error.
	Create(p cluster.PartitionID, id Identity) error
	// Open recovers the active copy and serves it: appends are accepted and reads allowed. epoch is
	// the assignment's. A copy with a pending marker, or none at all, is an error. Opening an open
	// copy updates its epoch.
	Open(p cluster.PartitionID, epoch cluster.Epoch) error
	// OpenFrozen is Open with appends refused from the start with token, so that no record slips in
	// between. It is for a restart during a freeze (I7).
	OpenFrozen(p cluster.PartitionID, epoch cluster.Epoch, token FreezeToken) error
	// Close stops serving: waiting appends are refused with NOT_OWNER, readers end, files close.
	// Closing what is not open succeeds.
	Close(p cluster.PartitionID) error

	// SetOutbound says whether an outbound marker exists for the copy. While it does, an append is
	// acknowledged only if the lease is valid after the sync (I10); the store gets the lease check when
	// it is made.
	SetOutbound(p cluster.PartitionID, outbound bool)
	// Manifest describes the active copy up to what is synced. Digests of files in known with the same
	// identity and size may be left out (nil Blocks).
	Manifest(p cluster.PartitionID, known []File) (Manifest, error)
	// OpenFile opens a file of the active copy for reading.
	OpenFile(p cluster.PartitionID, name string) (ReadFile, error)
	// Freeze makes appends fail with FROZEN, waits under the write lock for the one in progress, and
	// syncs. After it the manifest does not change, but for committed offsets. Freezing with the same
	// token succeeds; a later token replaces an earlier one.
	Freeze(ctx context.Context, p cluster.PartitionID, token FreezeToken) error
	// Thaw accepts appends again. A token that is not the present one changes nothing and succeeds.
	Thaw(p cluster.PartitionID, token FreezeToken) error
	// Frozen returns the present token; nil when not frozen.
	Frozen(p cluster.PartitionID) *FreezeToken

	// Stage opens the staging directory of a move, or makes it, and measures what is there from disk:
	// bytes after the last complete frame are cut off, digests are computed from the files.
	Stage(ctx context.Context, p cluster.PartitionID, move cluster.MoveID) (Staging, error)
	// Rollback takes an installed pending copy back to its staging directory, so that its bytes can be
	// used again. It succeeds when the copy is staged already, and refuses a copy of another move or
	// without a pending marker.
	Rollback(p cluster.PartitionID, move cluster.MoveID) error
	// ConfirmFlip removes the pending marker. It succeeds when the copy of that move has none.
	ConfirmFlip(p cluster.PartitionID, move cluster.MoveID) error
	// DropStaging removes a move's staging directory. The caller has confirmed (I9).
	DropStaging(p cluster.PartitionID, move cluster.MoveID) error

	// Quarantine closes the active copy with the identity and moves it aside. It succeeds when that copy is in
	// quarantine, and refuses another identity.
	Quarantine(p cluster.PartitionID, id Identity) error
	// ReadQuarantined calls fn with every record of complete frames from an offset on, hidden tail included,
	// and stops at fn's first error.
	ReadQuarantined(p cluster.PartitionID, id Identity, from cluster.Offset, fn func(Record) error) error
	// QuarantinedManifest describes a quarantined copy, so that the first difference can be found.
	QuarantinedManifest(p cluster.PartitionID, id Identity) (Manifest, error)
	// Delete removes a copy. The caller has confirmed (I9). It succeeds when there is none, and refuses one of
	// another identity in the active place.
	Delete(p cluster.PartitionID, place Place, id Identity) error
}

// Staging is one move's staging directory, held by one move at a time. Close releases it. Write, Truncate,
// SyncAndCompare and File may be called for different files at once; while they are, no other method is.
type Staging interface {
	// Files lists what is staged: names, lengths and digests measured from disk or kept while writing.
	Files() []File
	// File is one of Files; false when it is not staged.
	File(name string) (File, bool)
	// Write appends data to a file at its present end, which off must equal, creating it if need be.
	// Frames are checked as they arrive: CORRUPT names file and offset, and what was bad is not kept.
	// Not synced.
	Write(name string, off int64, data []byte) error
	// Truncate cuts a file to a length; zero removes its bytes.
	Truncate(name string, size int64) error
	// Remove removes a file that the source no longer lists.
	Remove(name string) error
	// SyncAndCompare syncs a file, re-reads it and compares its digests with want's; CORRUPT when they
	// differ.
	SyncAndCompare(ctx context.Context, want File) error
	// Finalize writes HWM, log start and committed offsets exactly as m has them, syncs files and
	// directories, and verifies: exactly m's files, every digest, and a log that covers [LogStart, LEO)
	// and ends at LEO. What SyncAndCompare confirmed and was not written since is not read again.
	// It returns how many bytes were read for it. CORRUPT names what differs.
	Finalize(ctx context.Context, m Manifest) (read cluster.Bytes, err error)
	// FinalizeForced is Finalize without a source: it cuts the copy to its last complete contiguous
	// frame, verifies it, makes HWM equal LEO, clamps committed offsets, and returns the LEO.
	FinalizeForced(ctx context.Context, m Manifest) (leo cluster.Offset, err error)
	// Install renames the directory to the active place with a pending-flip marker inside, and syncs the
	// parent. An active copy of another identity there is an error naming it. The staging is closed.
	Install(pending Pending) error
	// Close releases the directory and keeps it.
	Close() error
}

// LeaseCheck says whether the node's lease is valid now, by the monotonic clock. It is called after the
// sync of an append and before its acknowledgement.
type LeaseCheck func() bool

// Clock gives the time for record ages and nothing else.
type Clock func() time.Time
