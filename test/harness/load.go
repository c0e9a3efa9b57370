package harness

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
)

// Load runs producers and consumers over a changing list of agents.
type Load struct {
	Ledger *Ledger
	mu     struct {
		sync.Mutex
		agents []string
	}
	producers sync.WaitGroup
	consumers sync.WaitGroup
	stopOnce  sync.Once
	stopping  chan struct{}
}

// NewLoad returns a load over agents.
func NewLoad(l *Ledger, agents []string) *Load {
	load := &Load{Ledger: l, stopping: make(chan struct{})}
	load.SetAgents(agents)
	return load
}

// SetAgents replaces the addresses that clients know.
func (l *Load) SetAgents(agents []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.agents = agents
}

// agent returns the address for an attempt.
func (l *Load) agent(n int) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.agents[n%len(l.mu.agents)]
}

func (l *Load) agentCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.agents)
}

// Producer describes one producer.
type Producer struct {
	Topic string
	// Batch is the number of records of a request; Size that of a value, at least 12 bytes.
	Batch, Size int
	// Pause is the wait between requests; Every instead is the time from the begin of one to that of the next, when they are
	// faster than that.
	Pause, Every time.Duration
	// Key returns a record's key; nil sends none.
	Key func(seq uint64) []byte
	// Records bounds the records; zero goes on until StopProducers.
	Records uint64
	// Start is the index of the first agent to try.
	Start int
}

// Produce runs a producer until it is done, ctx ends or StopProducers is called.
func (l *Load) Produce(ctx context.Context, p Producer) {
	l.producers.Go(func() { l.produce(ctx, p) })
}

func (l *Load) produce(ctx context.Context, p Producer) {
	id := l.Ledger.Open(p.Topic)
	agent := p.Start
	for seq := uint64(0); p.Records == 0 || seq < p.Records; {
		n := uint64(p.Batch)
		if p.Records > 0 {
			n = min(n, p.Records-seq)
		}
		req := &nodev1.ProduceRequest{Topic: p.Topic}
		block := make([]byte, int(n)*p.Size)
		for i := range n {
			r := &nodev1.ProduceRecord{Value: Value(block[int(i)*p.Size:int(i+1)*p.Size:int(i+1)*p.Size], id, seq+i)}
			if p.Key != nil {
				r.Key = p.Key(seq + i)
			}
			req.Records = append(req.Records, r)
		}
		start := time.Now()
		var err error
		if agent, err = l.send(ctx, agent, req); err == nil {
			l.Ledger.Acknowledged(id, seq, seq+n, time.Since(start))
		} else if ctx.Err() == nil {
			l.Ledger.ProduceFailed(err.Error())
		}
		seq += n
		pause := p.Pause
		if p.Every > 0 {
			pause = p.Every - time.Since(start)
		}
		select {
		case <-ctx.Done():
			return
		case <-l.stopping:
			return
		case <-time.After(pause):
		}
	}
}

// send tries each agent once, then fails; the next request begins at the agent that answered.
func (l *Load) send(ctx context.Context, agent int, req *nodev1.ProduceRequest) (int, error) {
	var last error
	for range l.agentCount() {
		attempt, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := Data(l.agent(agent)).Produce(attempt, req)
		cancel()
		if err == nil {
			return agent, nil
		}
		last = fmt.Errorf("%s: %w", l.agent(agent), err)
		agent++
		if ctx.Err() != nil {
			break
		}
	}
	return agent, last
}

// Consume runs a consumer of a topic until ctx ends or StopConsumers is called.
func (l *Load) Consume(ctx context.Context, topic, group string, start int) {
	l.consumers.Go(func() {
		agent := start
		for ctx.Err() == nil {
			if err := l.consumeOnce(ctx, l.agent(agent), topic, group); err != nil {
				agent++
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		}
	})
}

func (l *Load) consumeOnce(ctx context.Context, address, topic, group string) error {
	attempt, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	data := Data(address)
	resp, err := data.Consume(attempt, &nodev1.ConsumeRequest{
		Topic: topic, Group: group, MaxRecords: 2000, MaxBytes: 2 << 20,
		Wait: durationpb.New(500 * time.Millisecond), VisibilityTimeout: durationpb.New(10 * time.Second),
	})
	if err != nil {
		return err
	}
	receipts := make([]string, 0, len(resp.GetRecords()))
	for _, r := range resp.GetRecords() {
		l.Ledger.Delivered(r.GetValue())
		receipts = append(receipts, r.GetReceipt())
	}
	if len(receipts) == 0 {
		return nil
	}
	// A receipt that is refused means another delivery, which the ledger counts.
	_, err = data.Ack(attempt, &nodev1.AckRequest{Topic: topic, Receipts: receipts})
	return err
}

// WaitProducers waits until bounded producers are done.
func (l *Load) WaitProducers() { l.producers.Wait() }

// StopProducers ends all producers after their present request.
func (l *Load) StopProducers() {
	l.stopOnce.Do(func() { close(l.stopping) })
	l.producers.Wait()
}

// Drain waits until every acknowledged record was delivered, or ctx ends.
func (l *Load) Drain(ctx context.Context) error {
	return Poll(ctx, "every acknowledged record is delivered", func() error {
		if n := l.Ledger.Outstanding(); n > 0 {
			return fmt.Errorf("%d are not", n)
		}
		return nil
	})
}

// WaitConsumers waits until consumers have ended, after their ctx has.
func (l *Load) WaitConsumers() { l.consumers.Wait() }
