package transfer

import (
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Headers of a bulk read beside Range.
const (
	HeaderMoveID       = "Narad-Move-Id"
	HeaderIncarnation  = "Narad-Incarnation"
	HeaderFileIdentity = "Narad-File-Identity"
)

// BulkPath is the prefix of bulk reads; topic id, partition and file name follow.
const BulkPath = "/transfer/v1/"

const (
	defaultCallTimeout     = 5 * time.Second
	defaultProgressTimeout = 10 * time.Second
	defaultFreezeTimeout   = 10 * time.Second
	defaultStreams         = 4
	// bufferSize is what a pull reads and stages at once, and what a serve sends at once.
	bufferSize = 1 << 20
	// maxMessageBytes bounds an answer of a source. The largest is a manifest with the digests of all blocks, 8 bytes
	// per MiB, and the offsets of all groups: this is enough for a partition of 7 TiB.
	maxMessageBytes = 64 << 20
	// inboxSize bounds the events that wait for a goroutine; senders wait when it is full.
	inboxSize = 64
)

// Definite reports whether err is an answer of the state machine, which will not change: the command had no
// effect and will have none. All else leaves the outcome unknown (I8).
func Definite(err error) bool {
	switch cluster.ReasonOf(err) {
	case 0, cluster.ReasonNoLeader, cluster.ReasonLimit, cluster.ReasonBug:
		return false
	}
	return true
}

// processClock returns the monotonic time since it was called. It begins above zero, so that zero stays "never".
func processClock() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) + time.Second }
}

func jitter() uint32 { return rand.Uint32N(1024) }

func hit(point string, p cluster.PartitionID, move cluster.MoveID, h cluster.Handoff) error {
	if !faults.Enabled {
		return nil
	}
	return faults.Hit(faults.Event{
		Point: point, TopicID: uint64(p.Topic), Index: p.Index, MoveID: uint64(move), Handoff: uint32(h),
	})
}

func logFields(p cluster.PartitionID, move cluster.MoveID) []zap.Field {
	return []zap.Field{zap.Stringer("partition", p), zap.Uint64("move_id", uint64(move))}
}

// copyFinder is what a store may offer beside PartitionStore to find the copies of one partition without
// listing all.
type copyFinder interface {
	CopiesOf(p cluster.PartitionID) ([]store.Copy, error)
}

// CopiesOf returns the copies of one partition.
func CopiesOf(st store.PartitionStore, p cluster.PartitionID) ([]store.Copy, error) {
	if f, ok := st.(copyFinder); ok {
		return f.CopiesOf(p)
	}
	all, err := st.Copies()
	if err != nil {
		return nil, err
	}
	var out []store.Copy
	for _, c := range all {
		if c.Partition == p {
			out = append(out, c)
		}
	}
	return out, nil
}

// activeCopy returns the copy in p's real place.
func activeCopy(st store.PartitionStore, p cluster.PartitionID) (store.Copy, bool, error) {
	copies, err := CopiesOf(st, p)
	for _, c := range copies {
		if c.Place == store.Active {
			return c, true, err
		}
	}
	return store.Copy{}, false, err
}
