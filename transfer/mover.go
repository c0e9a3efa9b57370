package transfer

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Mover is the destination's side of every move to this node. The controller bounds how many there are.
// Make it with NewMover; it is safe for concurrent use; Close it.
type Mover struct {
	cfg     MoverConfig
	limiter *rate.Limiter
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	mu struct {
		sync.Mutex
		// runs has one move of a partition at a time; next is what waits for it to end.
		runs map[cluster.PartitionID]*run
		next map[cluster.PartitionID]cluster.Assignment
		// journaled are states that were loaded and are not yet taken up, the oldest move first.
		journaled map[cluster.PartitionID][]move.State
		nodes     map[cluster.NodeID]cluster.Node
		settings  cluster.Settings
		closed    bool
	}
}

// NewMover loads the journal. Nothing runs before Resume or Observe.
func NewMover(cfg MoverConfig) (*Mover, error) {
	if cfg.Store == nil || cfg.Control == nil || cfg.Journal == nil || cfg.HTTP == nil {
		return nil, cluster.Invalid("mover", "store, control, journal and http are required")
	}
	if cfg.BaseURL == nil {
		cfg.BaseURL = func(address string) string { return "http://" + address }
	}
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.Open == nil {
		cfg.Open = cfg.Store.Open
	}
	if cfg.Now == nil {
		cfg.Now = processClock()
	}
	if cfg.Streams == 0 {
		cfg.Streams = defaultStreams
	}
	if cfg.ProgressTimeout == 0 {
		cfg.ProgressTimeout = defaultProgressTimeout
	}
	if cfg.CallTimeout == 0 {
		cfg.CallTimeout = defaultCallTimeout
	}
	m := &Mover{cfg: cfg, limiter: rate.NewLimiter(rate.Inf, bufferSize)}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.mu.runs = map[cluster.PartitionID]*run{}
	m.mu.next = map[cluster.PartitionID]cluster.Assignment{}
	m.mu.journaled = map[cluster.PartitionID][]move.State{}
	m.mu.nodes = map[cluster.NodeID]cluster.Node{}
	records, err := cfg.Journal.Load(movePrefix)
	if err != nil {
		m.cancel()
		return nil, fmt.Errorf("load the move journal: %w", err)
	}
	for key, b := range records {
		st, err := move.Decode(b)
		if err != nil {
			m.cancel()
			return nil, fmt.Errorf("load %s: %w", key, err)
		}
		list := append(m.mu.journaled[st.Partition], st)
		slices.SortFunc(list, func(a, b move.State) int { return int(a.MoveID) - int(b.MoveID) })
		m.mu.journaled[st.Partition] = list
	}
	m.SetSettings(cfg.Settings)
	return m, nil
}

// Resume takes up what the journal and the disk hold: copies that wait for their flip, staged bytes, moves
// that had flipped and were not yet reported (I7).
func (m *Mover) Resume(context.Context) error {
	copies, err := m.cfg.Store.Copies()
	if err != nil {
		return fmt.Errorf("list copies: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range copies {
		if c.Place != store.Active || c.Pending == nil {
			continue
		}
		known := m.mu.runs[c.Partition] != nil && m.mu.runs[c.Partition].move == c.Pending.MoveID
		for _, st := range m.mu.journaled[c.Partition] {
			known = known || st.MoveID == c.Pending.MoveID
		}
		if !known {
			// Without its journal entry the token's nonce is lost; the revocation will say what became of it.
			st := move.New(c.Partition, c.Pending.MoveID, "")
			m.mu.journaled[c.Partition] = append([]move.State{st}, m.mu.journaled[c.Partition]...)
		}
	}
	for p := range m.mu.journaled {
		m.startNext(p)
	}
	return nil
}

// startNext begins what waits for p, if nothing runs. The lock is held.
func (m *Mover) startNext(p cluster.PartitionID) {
	if m.mu.closed || m.mu.runs[p] != nil {
		return
	}
	var st move.State
	if list := m.mu.journaled[p]; len(list) > 0 {
		st = list[0]
		if m.mu.journaled[p] = list[1:]; len(list) == 1 {
			delete(m.mu.journaled, p)
		}
	} else if a, ok := m.mu.next[p]; ok {
		delete(m.mu.next, p)
		st = move.New(p, a.MoveID, a.Owner)
	} else {
		return
	}
	r := newRun(m, st)
	m.mu.runs[p] = r
	if n, ok := m.mu.nodes[st.Source]; ok {
		r.source = &n
	}
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		r.loop(m.ctx)
		m.finished(r)
	}()
}

func (m *Mover) finished(r *run) {
	m.mu.Lock()
	// A move that ended otherwise keeps its place until the next start: nobody else may touch its copies.
	if r.st.Phase == move.Done && r.crashed == nil {
		delete(m.mu.runs, r.p)
		m.startNext(r.p)
	}
	m.mu.Unlock()
	if r.st.Phase == move.Done && m.cfg.OnFinished != nil {
		m.cfg.OnFinished(r.p, r.move, r.st.Stats)
	}
}

// Observe is told of an assignment when the watch shows it.
func (m *Mover) Observe(a cluster.Assignment) {
	mine := a.Moving() && a.Target == m.cfg.Node && a.Owner != m.cfg.Node
	m.mu.Lock()
	r := m.mu.runs[a.Partition]
	switch {
	case r != nil && r.move == a.MoveID, r != nil && a.Moving() && a.MoveID < r.move:
		m.mu.Unlock()
		return
	case mine:
		known := false
		for _, st := range m.mu.journaled[a.Partition] {
			known = known || st.MoveID == a.MoveID
		}
		if !known {
			m.mu.next[a.Partition] = a
		}
		m.startNext(a.Partition)
		if now := m.mu.runs[a.Partition]; now != nil && now.move != a.MoveID {
			r = now // an older move has to be resolved first
		}
	default:
		delete(m.mu.next, a.Partition)
	}
	m.mu.Unlock()
	if r != nil {
		r.send(move.Hinted{})
	}
}

// ObserveRemoved is told that a partition does not concern this node any more, or is gone.
func (m *Mover) ObserveRemoved(p cluster.PartitionID) {
	m.mu.Lock()
	delete(m.mu.next, p)
	r := m.mu.runs[p]
	m.mu.Unlock()
	if r != nil {
		r.send(move.Hinted{})
	}
}

// ObserveNode is told of a node's record when the watch shows it.
func (m *Mover) ObserveNode(n cluster.Node) {
	m.mu.Lock()
	m.mu.nodes[n.ID] = n
	var runs []*run
	for _, r := range m.mu.runs {
		if r.sourceID == n.ID {
			runs = append(runs, r)
		}
	}
	m.mu.Unlock()
	for _, r := range runs {
		r.send(sourceRecord{n})
	}
}

// SetSettings replaces the live settings.
func (m *Mover) SetSettings(s cluster.Settings) {
	m.mu.Lock()
	m.mu.settings = s
	m.mu.Unlock()
	if s.CopyRatePerNode == 0 {
		m.limiter.SetLimit(rate.Inf)
		return
	}
	m.limiter.SetLimit(rate.Limit(s.CopyRatePerNode))
}

func (m *Mover) settings() cluster.Settings {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.settings
}

// Retry ends the back-off of p's move, if one waits.
func (m *Mover) Retry(p cluster.PartitionID) {
	m.mu.Lock()
	r := m.mu.runs[p]
	m.mu.Unlock()
	if r != nil {
		r.send(move.Retried{})
	}
}

// Promote has p's move promote its copy now, the source being dead: without waiting for force_promote_after, and with acceptLoss
// even when the copy is not complete. It is ignored when the move is not p's present one.
func (m *Mover) Promote(p cluster.PartitionID, id cluster.MoveID, acceptLoss bool) {
	m.mu.Lock()
	r := m.mu.runs[p]
	m.mu.Unlock()
	if r != nil && r.move == id {
		r.send(move.PromoteAsked{AcceptLoss: acceptLoss})
	}
}

// Progress describes every move, by partition.
func (m *Mover) Progress() []cluster.MoveProgress {
	m.mu.Lock()
	runs := make([]*run, 0, len(m.mu.runs))
	for _, r := range m.mu.runs {
		runs = append(runs, r)
	}
	m.mu.Unlock()
	out := make([]cluster.MoveProgress, 0, len(runs))
	for _, r := range runs {
		out = append(out, r.progress())
	}
	slices.SortFunc(out, func(a, b cluster.MoveProgress) int { return a.Partition.Compare(b.Partition) })
	return out
}

// promised is what the copies of other partitions that are being made still need. One that waits or is blocked
// needs nothing for now: it looks again when it begins anew.
func (m *Mover) promised(except cluster.PartitionID) (n cluster.Bytes) {
	for _, p := range m.Progress() {
		if p.Partition != except && (p.Phase == cluster.PhaseCatchingUp || p.Phase == cluster.PhaseFrozen) {
			n += p.Lag
		}
	}
	return n
}

// Busy reports whether a move works on p, or is journaled: nobody else may then open, set aside or remove
// its copies here.
func (m *Mover) Busy(p cluster.PartitionID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.runs[p] != nil || len(m.mu.journaled[p]) > 0
}

// Close stops every move and waits. All go on from the journal with a new Mover.
func (m *Mover) Close() {
	m.mu.Lock()
	m.mu.closed = true
	m.mu.Unlock()
	m.cancel()
	m.wg.Wait()
	if t, ok := m.cfg.HTTP.Transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// longCall bounds calls for which the source may have to read a whole partition.
func (m *Mover) longCall() time.Duration { return 6 * m.cfg.ProgressTimeout }
