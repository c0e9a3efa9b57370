package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/naradctl/naradctl-plane/test/harness"
)

// The ways to make the demo fail. Its own test uses them: a verdict that can't be FAIL is worth nothing.
const (
	sabotageDropRecord = "drop-record"
	sabotageSkipKill   = "skip-kill"
)

// dropRecord produces one record that no consumer sees yet, then cuts its last byte off the log of its
// partition while the owner is down, as a disk would that lied about a sync.
func (d *demo) dropRecord(ctx context.Context) error {
	single := harness.NewLoad(d.ledger, d.cluster.AgentAddresses()[1:])
	single.Produce(ctx, harness.Producer{Topic: topicEmpty, Batch: 1, Size: 100, Records: 1, Key: func(uint64) []byte { return []byte("k") }})
	single.WaitProducers()
	pattern := filepath.Join(d.dir, "agent-*", "store", "partitions", strconv.FormatUint(d.topicID[topicEmpty], 10), "*", "*.log")
	var file string
	err := harness.Poll(ctx, "the record is in a log", func() error {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return harness.Fatal(err)
		}
		i := slices.IndexFunc(files, func(f string) bool {
			st, err := os.Stat(f)
			return err == nil && st.Size() > 100
		})
		if i < 0 {
			return errors.New("no log of the empty topic has bytes")
		}
		file = files[i]
		return nil
	})
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(d.dir, file)
	if err != nil {
		return err
	}
	owner := d.cluster.Process(rel[:len("agent-N")])
	if err := owner.Kill(); err != nil {
		return err
	}
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	if err := os.Truncate(file, st.Size()-1); err != nil {
		return err
	}
	d.sayf("  sabotage: cut one byte off %s", rel)
	if err := owner.Start(); err != nil {
		return err
	}
	if err := d.cluster.WaitReady(ctx, owner); err != nil {
		return fmt.Errorf("after the sabotage: %w", err)
	}
	limit, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	single.Consume(limit, topicEmpty, "demo", 0)
	single.WaitConsumers()
	return nil
}
