package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/naradctl/naradctl-plane/client"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	nodev1 "github.com/naradctl/naradctl-plane/proto/naradnode/v1"
	"github.com/naradctl/naradctl-plane/proto/naradnode/v1/nodev1connect"
)

const (
	// batchRecords and batchBytes bound one produce request, well under the API's 4 MiB.
	batchRecords = 500
	batchBytes   = 1 << 20
	// consumeWait is how long a consume waits for a first record.
	consumeWait = time.Second
)

// data calls the agents that are given, or those that the controllers name, until one answers.
func data[T any](ctx context.Context, a *app, agents []string, fn func(context.Context, nodev1connect.DataServiceClient) (T, error)) (T, error) {
	var zero T
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	c, err := a.connect(agents)
	if err != nil {
		return zero, err
	}
	v, err := fn(ctx, c.Data())
	var nobody *client.UnreachableError
	switch {
	case err == nil:
		return v, nil
	case errors.Is(err, client.ErrNoAgent):
		return zero, fmt.Errorf("%w: start an agent (naradctl-plane agent), or see: naradctl-plane cluster members", client.ErrNoAgent)
	case len(agents) == 0 && errors.As(err, &nobody) && nobody.Party == "controller":
		return zero, fmt.Errorf("%w; agents serve without controllers, too: --agent HOST:PORT", a.explain(err))
	}
	return zero, a.explain(err)
}

func (a *app) produceCommand() *cobra.Command {
	var (
		key    string
		agents []string
	)
	cmd := &cobra.Command{
		Use:   "produce TOPIC [VALUE…]",
		Short: "Produce records: the arguments, or each line of standard input",
		Long: `Produce records: the arguments, or each line of standard input. When the command returns, every
record is synced on a disk and will be delivered at least once, whatever moves or restarts.

Records of one key go to one partition; without a key they are spread.`,
		Example: `  naradctl-plane produce orders hello world
  naradctl-plane produce orders --key customer-7 '{"item":1}'
  seq 1000 | naradctl-plane produce orders`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.produce(cmd.Context(), args[0], key, agents, args[1:], cmd.InOrStdin())
		},
	}
	a.clientFlags(cmd)
	cmd.Flags().StringVarP(&key, "key", "k", "", "key of all records")
	cmd.Flags().StringSliceVar(&agents, "agent", nil, "host:port of agents; by default the controllers are asked for them")
	return cmd
}

func (a *app) produce(ctx context.Context, topic, key string, given, values []string, in io.Reader) error {
	total := &nodev1.ProduceResponse{}
	send := func(batch []*nodev1.ProduceRecord) error {
		m, err := data(ctx, a, given, func(ctx context.Context, c nodev1connect.DataServiceClient) (*nodev1.ProduceResponse, error) {
			return c.Produce(ctx, &nodev1.ProduceRequest{Topic: topic, Records: batch})
		})
		if err != nil {
			return partly(total.Accepted, err)
		}
		total.Accepted += m.GetAccepted()
		return nil
	}
	b := &batcher{key: []byte(key), send: send}
	if len(values) > 0 {
		for _, v := range values {
			if err := b.add([]byte(v)); err != nil {
				return err
			}
		}
	} else if err := eachLine(in, b.add); err != nil {
		return partly(total.Accepted, err)
	}
	if err := b.flush(); err != nil {
		return err
	}
	return a.print(total, func(w io.Writer) { fmt.Fprintf(w, "accepted %s\n", plural(int(total.Accepted), "record")) })
}

// partly adds to err what was done before it.
func partly(accepted uint32, err error) error {
	if accepted == 0 {
		return err
	}
	return fmt.Errorf("%s accepted, then: %w", plural(int(accepted), "record"), err)
}

// batcher groups records into requests.
type batcher struct {
	key   []byte
	send  func([]*nodev1.ProduceRecord) error
	batch []*nodev1.ProduceRecord
	bytes int
	count int // of all batches
}

func (b *batcher) add(value []byte) error {
	if len(b.key)+len(value) > cluster.MaxRecordBytes {
		return withCode(codeUsage, fmt.Errorf("record %d has %d bytes with its key; at most %d are allowed",
			b.count+1, len(b.key)+len(value), cluster.MaxRecordBytes))
	}
	if len(b.batch) == batchRecords || (len(b.batch) > 0 && b.bytes+len(value) > batchBytes) {
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.batch = append(b.batch, &nodev1.ProduceRecord{Key: b.key, Value: bytes.Clone(value)})
	b.bytes += len(b.key) + len(value)
	b.count++
	return nil
}

func (b *batcher) flush() error {
	if len(b.batch) == 0 {
		return nil
	}
	err := b.send(b.batch)
	b.batch, b.bytes = nil, 0
	return err
}

func eachLine(in io.Reader, fn func([]byte) error) error {
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 64<<10), cluster.MaxRecordBytes+2) // with the end of the line
	lines := 0
	for s.Scan() {
		lines++
		if err := fn(s.Bytes()); err != nil {
			return err
		}
	}
	switch err := s.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return withCode(codeUsage, fmt.Errorf("line %d of standard input is longer than %d bytes, which a record may have", lines+1, cluster.MaxRecordBytes))
	case err != nil:
		return fmt.Errorf("read standard input: %w", err)
	}
	return nil
}

type consume struct {
	*app
	topic, group string
	agents       []string
	max          uint64
	follow, ack  bool
	visibility   time.Duration
}

func (a *app) consumeCommand() *cobra.Command {
	c := &consume{app: a}
	cmd := &cobra.Command{
		Use:   "consume TOPIC --group GROUP",
		Short: "Consume records of a group",
		Long: `Consume records of a group: what is there, or with --follow what comes. Each record is reserved for
the group for a while (--visibility) and comes again unless it is acknowledged (--ack). Delivery is at
least once; a move may deliver a record again, and never skips one.

The table has partition, offset, key and value; -o json has one record on each line and -o yaml one in
each document, with key and value in base64.`,
		Example: `  naradctl-plane consume orders --group billing --ack
  naradctl-plane consume orders --group billing --follow --ack -o json
  naradctl-plane consume orders --group look --max 10        # they come again after 30 s`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.topic = args[0]
			if c.group == "" {
				return withCode(codeUsage, errors.New("--group must name the consumer group; it is created by its first consume"))
			}
			return c.run(cmd.Context())
		},
	}
	a.clientFlags(cmd)
	f := cmd.Flags()
	f.StringVarP(&c.group, "group", "g", "", "consumer group")
	f.Uint64VarP(&c.max, "max", "n", 0, "stop after so many records; 0 is no limit")
	f.BoolVarP(&c.follow, "follow", "f", false, "wait for more until interrupted")
	f.BoolVar(&c.ack, "ack", false, "acknowledge what was printed")
	f.DurationVar(&c.visibility, "visibility", 30*time.Second, "how long records stay reserved")
	f.StringSliceVar(&c.agents, "agent", nil, "host:port of agents; by default the controllers are asked for them")
	return cmd
}

func (c *consume) run(ctx context.Context) error {
	ctx, cancel := c.limit(ctx, true)
	defer cancel()
	ctx, stop := interruptible(ctx)
	defer stop()
	var got uint64
	for {
		request := &nodev1.ConsumeRequest{
			Topic: c.topic, Group: c.group, MaxRecords: batchRecords,
			Wait: durationpb.New(consumeWait), VisibilityTimeout: durationpb.New(c.visibility),
		}
		if c.max > 0 {
			request.MaxRecords = uint32(min(batchRecords, c.max-got))
		}
		m, err := data(ctx, c.app, c.agents, func(ctx context.Context, d nodev1connect.DataServiceClient) (*nodev1.ConsumeResponse, error) {
			return d.Consume(ctx, request)
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if err := c.show(m); err != nil {
			return err
		}
		if err := c.confirm(ctx, m); err != nil {
			return err
		}
		got += uint64(len(m.GetRecords()))
		if (c.max > 0 && got >= c.max) || (len(m.GetRecords()) == 0 && !c.follow) {
			return c.unavailable(m)
		}
	}
}

func (c *consume) show(m *nodev1.ConsumeResponse) error {
	for _, r := range m.GetRecords() {
		if done, err := c.streamed(r); done {
			if err != nil {
				return err
			}
			continue
		}
		if _, err := fmt.Fprintf(c.stdout, "%d\t%d\t%s\t%s\n", r.GetPartition(), r.GetOffset(), r.GetKey(), r.GetValue()); err != nil {
			return err
		}
	}
	return nil
}

// confirm acknowledges what was printed. A receipt that is refused is no failure: the record comes again.
func (c *consume) confirm(ctx context.Context, m *nodev1.ConsumeResponse) error {
	if !c.ack || len(m.GetRecords()) == 0 {
		return nil
	}
	req := &nodev1.AckRequest{Topic: c.topic}
	for _, r := range m.GetRecords() {
		req.Receipts = append(req.Receipts, r.GetReceipt())
	}
	// Records that were printed are acknowledged even when Ctrl-C came in between.
	res, err := data(context.WithoutCancel(ctx), c.app, c.agents, func(ctx context.Context, d nodev1connect.DataServiceClient) (*nodev1.AckResponse, error) {
		return d.Ack(ctx, req)
	})
	if err != nil {
		return fmt.Errorf("acknowledge %s (they may come again): %w", plural(len(req.Receipts), "record"), err)
	}
	for _, e := range res.GetErrors() {
		fmt.Fprintf(c.stderr, "not acknowledged, it may come again: %s: %s\n", e.GetReason(), e.GetMessage())
	}
	return nil
}

// unavailable reports partitions that were not asked, so that "nothing" is not mistaken for "empty".
func (c *consume) unavailable(m *nodev1.ConsumeResponse) error {
	if len(m.GetUnavailable()) > 0 {
		fmt.Fprintf(c.stderr, "some partitions could not be asked: %s\n", strings.Join(m.GetUnavailable(), "; "))
	}
	return nil
}
