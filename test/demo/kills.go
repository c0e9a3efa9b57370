package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/naradctl/naradctl-plane/internal/faults"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// kill is one SIGKILL at a named point.
type kill struct {
	process, point string
	record         string
	// struck is what the process recorded before it died; nil until then.
	struck *faults.Event
}

// arm prepares a kill of a process at a point, in a partition of the orders topic.
func (d *demo) arm(ctx context.Context, process, point string) error {
	k := &kill{process: process, point: point, record: filepath.Join(d.dir, fmt.Sprintf("kill-%d.json", len(d.kills)))}
	d.kills = append(d.kills, k)
	return harness.ArmFault(ctx, d.cluster.Process(process), harness.Arm{
		Point: point, Action: "kill", TopicID: d.topicID[topicOrders], Record: k.record})
}

// tendKills looks for kills that have struck, prints their evidence, and restarts the processes.
func (d *demo) tendKills(ctx context.Context) error {
	for _, k := range d.kills {
		if k.struck != nil || k.record == "" {
			continue
		}
		e, err := harness.Struck(k.record)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		p := d.cluster.Process(k.process)
		select {
		case <-p.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
		k.struck = &e
		now, err := d.cluster.API.Assignment(ctx, e.TopicID, e.Index, e.MoveID)
		if err != nil {
			return err
		}
		a := now.GetAssignment()
		owner := "owner still " + a.GetOwner()
		if a.GetMoveId() != e.MoveID {
			owner = "owner now " + a.GetOwner()
		}
		d.sayf("  killed %s at %s: %s/%d move %d handoff %d, %s, revision %d", k.process, k.point, topicOrders, e.Index, e.MoveID,
			max(e.Handoff, a.GetHandoff()), owner, now.GetRevision())
		if err := p.Start(); err != nil {
			return err
		}
		d.sayf("  restarted %s", k.process)
	}
	return nil
}

// killsSettled reports whether every kill that is armed has struck.
func (d *demo) killsSettled() bool { return d.killsError() == nil }

func (d *demo) killsError() error {
	for _, k := range d.kills {
		if k.struck == nil && k.record != "" {
			return fmt.Errorf("the kill of %s at %s has not struck", k.process, k.point)
		}
	}
	return nil
}
