package harness

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"
)

// headerSize is what each record's value begins with: the producer's number and the record's.
const headerSize = 12

// Ledger knows every record that was acknowledged and every delivery. It is safe for concurrent use.
type Ledger struct {
	mu struct {
		sync.Mutex
		producers []*account
		produce   []time.Duration
		failed    []string
		topics    map[string]*flow
		unknown   int
	}
}

// account is one producer's records, by number.
type account struct {
	topic     string
	acked     []bool
	delivered []uint16
}

// flow tells whether a topic's consumers make progress.
type flow struct {
	outstanding int
	since       time.Time
	maxGap      time.Duration
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	l := &Ledger{}
	l.mu.topics = map[string]*flow{}
	return l
}

// Open returns the number of a new producer for a topic.
func (l *Ledger) Open(topic string) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.topics[topic] == nil {
		l.mu.topics[topic] = &flow{}
	}
	l.mu.producers = append(l.mu.producers, &account{topic: topic})
	return uint32(len(l.mu.producers) - 1)
}

// Value fills b's head with a record's identity. b has at least 12 bytes.
func Value(b []byte, producer uint32, seq uint64) []byte {
	binary.BigEndian.PutUint32(b, producer)
	binary.BigEndian.PutUint64(b[4:], seq)
	return b
}

// Acknowledged notes that the records [from, to) of a producer were acknowledged after took.
func (l *Ledger) Acknowledged(producer uint32, from, to uint64, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.produce = append(l.mu.produce, took)
	a := l.mu.producers[producer]
	a.grow(to)
	f := l.mu.topics[a.topic]
	for i := from; i < to; i++ {
		a.acked[i] = true
		if a.delivered[i] == 0 {
			if f.outstanding == 0 {
				f.since = time.Now()
			}
			f.outstanding++
		}
	}
}

func (a *account) grow(n uint64) {
	for uint64(len(a.acked)) < n {
		a.acked = append(a.acked, false)
		a.delivered = append(a.delivered, 0)
	}
}

// ProduceFailed notes a request that no agent accepted.
func (l *Ledger) ProduceFailed(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.failed = append(l.mu.failed, why)
}

// Delivered notes a delivery by the head of its value.
func (l *Ledger) Delivered(value []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(value) < headerSize {
		l.mu.unknown++
		return
	}
	producer, seq := binary.BigEndian.Uint32(value), binary.BigEndian.Uint64(value[4:])
	if int(producer) >= len(l.mu.producers) {
		l.mu.unknown++
		return
	}
	a := l.mu.producers[producer]
	a.grow(seq + 1)
	a.delivered[seq]++
	f := l.mu.topics[a.topic]
	now := time.Now()
	if f.outstanding > 0 {
		f.maxGap = max(f.maxGap, now.Sub(f.since))
	}
	f.since = now
	if a.delivered[seq] == 1 && a.acked[seq] {
		f.outstanding--
	}
}

// Measure begins to measure anew: latencies and gaps from before are forgotten, records are not.
func (l *Ledger) Measure() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.produce = nil
	for _, f := range l.mu.topics {
		f.maxGap, f.since = 0, time.Now()
	}
}

// Outstanding counts acknowledged records that were not delivered yet.
func (l *Ledger) Outstanding() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, f := range l.mu.topics {
		n += f.outstanding
	}
	return n
}

// Tally is the ledger's sum.
type Tally struct {
	Acknowledged, Delivered, Lost, Duplicates int
	// Unknown are deliveries of records that nobody produced.
	Unknown       int
	ProduceFailed []string
	ProduceP50    time.Duration
	ProduceP99    time.Duration
	ProduceMax    time.Duration
	ConsumeGapMax time.Duration
	// FirstLost names some lost records.
	FirstLost []string
}

// Tally sums up.
func (l *Ledger) Tally() Tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := Tally{Unknown: l.mu.unknown, ProduceFailed: slices.Clone(l.mu.failed)}
	for id, a := range l.mu.producers {
		for seq := range a.acked {
			if n := int(a.delivered[seq]); n > 1 {
				t.Duplicates += n - 1
			}
			if !a.acked[seq] {
				continue
			}
			t.Acknowledged++
			if a.delivered[seq] > 0 {
				t.Delivered++
				continue
			}
			t.Lost++
			if len(t.FirstLost) < 10 {
				t.FirstLost = append(t.FirstLost, fmt.Sprintf("%s: producer %d record %d", a.topic, id, seq))
			}
		}
	}
	for _, f := range l.mu.topics {
		gap := f.maxGap
		if f.outstanding > 0 {
			gap = max(gap, time.Since(f.since))
		}
		t.ConsumeGapMax = max(t.ConsumeGapMax, gap)
	}
	t.ProduceP50 = Quantile(l.mu.produce, 0.5)
	t.ProduceP99 = Quantile(l.mu.produce, 0.99)
	t.ProduceMax = Quantile(l.mu.produce, 1)
	return t
}

// Quantile returns the q-quantile of ds, 0 ≤ q ≤ 1; zero of nothing.
func Quantile(ds []time.Duration, q float64) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(ds))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}
