// Bench measures moves on real processes and prints a table: how long a partition is frozen, by its size and with
// writes going on, how much is read inside the freeze, and how fast it is copied; then how many empty partitions a
// drain moves in a second. Run it by `make bench`.
//
// Absolute figures mean little on shared machines. The first rows are the cost of a freeze's parts, measured in the
// same run: one synced write, and one commit of the controllers.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/types/known/durationpb"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type bench struct {
	release string
	moves   int
	drained uint
	only    string
	cluster *harness.Cluster
	w       *tabwriter.Writer
}

func run() error {
	b := &bench{w: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)}
	flag.StringVar(&b.release, "release", "bin/naradctl-plane", "the release `binary`")
	flag.IntVar(&b.moves, "moves", 20, "moves of each partition")
	flag.UintVar(&b.drained, "drain", 2000, "empty partitions, half of which are drained off a node")
	flag.StringVar(&b.only, "only", "", "freeze or drain; both when empty")
	flag.Parse()
	var err error
	if b.release, err = filepath.Abs(b.release); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "naradctl-plane-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if b.cluster, err = harness.New(harness.Options{Dir: dir, Release: b.release}); err != nil {
		return err
	}
	defer b.cluster.KillAll()
	if err := b.prepare(ctx); err != nil {
		return err
	}
	if err := b.parts(ctx, dir); err != nil {
		return err
	}
	if b.only != "drain" {
		if err := b.freezes(ctx); err != nil {
			return err
		}
	}
	if b.only != "freeze" {
		return b.drain(ctx, uint32(b.drained))
	}
	return nil
}

// freezes moves partitions of several sizes.
func (b *bench) freezes(ctx context.Context) error {
	fmt.Fprintln(b.w, "partition\twrites/s\tmoves\tfreeze p50\tp99\tmax\tread in freeze p50\tmax\tcopy MB/s p50\tconverged\t")
	for _, c := range []struct {
		name  string
		bytes int
		pause time.Duration
	}{
		{"empty", 0, 0}, {"100MiB", 100 << 20, 2 * time.Millisecond}, {"1GiB", 1 << 30, 2 * time.Millisecond},
	} {
		if err := b.size(ctx, c.name, c.bytes, c.pause); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		_ = b.w.Flush()
	}
	return nil
}

func (b *bench) prepare(ctx context.Context) error {
	if err := b.cluster.Start(ctx); err != nil {
		return err
	}
	for _, name := range []string{"agent-1", "agent-2"} {
		if _, err := b.cluster.AddAgent(ctx, name); err != nil {
			return err
		}
	}
	paused := true
	return b.cluster.API.UpdateSettings(ctx, &planev1.Settings{RebalancePaused: &paused, ReclaimAfter: durationpb.New(0)})
}

// parts measures what a freeze is made of.
func (b *bench) parts(ctx context.Context, dir string) error {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return err
	}
	defer f.Close()
	var syncs, commits []time.Duration
	for range 200 {
		start := time.Now()
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		syncs = append(syncs, time.Since(start))
	}
	for i := range 200 {
		rate := uint64(1<<40 + i)
		start := time.Now()
		if err := b.cluster.API.UpdateSettings(ctx, &planev1.Settings{CopyRatePerNode: &rate}); err != nil {
			return err
		}
		commits = append(commits, time.Since(start))
	}
	unlimited := uint64(0)
	fmt.Fprintf(b.w, "parts\tp50\tp99\t\nsynced write of 4 KiB\t%s\t%s\t\ncommit by 3 controllers\t%s\t%s\t\n\n",
		ms(harness.Quantile(syncs, 0.5)), ms(harness.Quantile(syncs, 0.99)), ms(harness.Quantile(commits, 0.5)), ms(harness.Quantile(commits, 0.99)))
	_ = b.w.Flush()
	return b.cluster.API.UpdateSettings(ctx, &planev1.Settings{CopyRatePerNode: &unlimited})
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }

// size moves one partition of a size to and fro, with writes going on unless it is to stay empty.
func (b *bench) size(ctx context.Context, name string, bytes int, pause time.Duration) error {
	if _, err := b.cluster.API.CreateTopic(ctx, name, 1, ""); err != nil {
		return err
	}
	ledger := harness.NewLedger()
	load := harness.NewLoad(ledger, b.cluster.AgentAddresses())
	if bytes > 0 {
		load.Produce(ctx, harness.Producer{Topic: name, Batch: 200, Size: 4096, Records: uint64(bytes / 4096)})
		load.WaitProducers()
		load.Produce(ctx, harness.Producer{Topic: name, Batch: 10, Size: 256, Pause: pause})
	}
	began := time.Now()
	before := ledger.Tally().Acknowledged
	for range b.moves {
		if err := b.move(ctx, name); err != nil {
			return err
		}
	}
	rate := float64(ledger.Tally().Acknowledged-before) / time.Since(began).Seconds()
	load.StopProducers()
	moves, err := b.cluster.API.Moves(ctx, true)
	if err != nil {
		return err
	}
	var freezes, reads, speeds []time.Duration
	converged := 0
	for _, r := range moves.GetHistory() {
		s := r.GetStats()
		if r.GetPartition().GetTopic() != name || r.GetKind() != planev1.OutcomeKind_OUTCOME_KIND_FLIPPED {
			continue
		}
		freezes = append(freezes, s.GetFreeze().AsDuration())
		reads = append(reads, time.Duration(s.GetFrozenReadBytes()))
		speeds = append(speeds, time.Duration(float64(s.GetBytes())/max(1e-9, s.GetDuration().AsDuration().Seconds())))
		if s.GetConverged() {
			converged++
		}
	}
	size := func(q float64) string { return humanize.IBytes(uint64(harness.Quantile(reads, q))) }
	fmt.Fprintf(b.w, "%s\t%.0f\t%d\t%s\t%s\t%s\t%s\t%s\t%.0f\t%d\t\n", name, rate, len(freezes),
		ms(harness.Quantile(freezes, 0.5)), ms(harness.Quantile(freezes, 0.99)), ms(harness.Quantile(freezes, 1)),
		size(0.5), size(1), float64(harness.Quantile(speeds, 0.5))/1e6, converged)
	return nil
}

// move moves the topic's partition to the other agent, and waits until it is open there and gone here.
func (b *bench) move(ctx context.Context, topic string) error {
	as, err := b.cluster.API.Assignments(ctx, topic)
	if err != nil {
		return err
	}
	to := "agent-1"
	if as[0].GetOwner() == to {
		to = "agent-2"
	}
	move, err := b.cluster.API.StartMove(ctx, topic, 0, to)
	if err != nil {
		return err
	}
	return harness.Poll(ctx, "the move ends", func() error {
		got, err := b.cluster.API.Assignment(ctx, as[0].GetPartition().GetTopicId(), 0, move)
		if err != nil {
			return err
		}
		if got.GetMoveState() != planev1.MoveState_MOVE_STATE_FORGOTTEN {
			return errors.New("it has not, or the stale copy is not reclaimed")
		}
		return nil
	})
}
