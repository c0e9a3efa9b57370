package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
	"github.com/naradctl/naradctl-plane/test/harness"
)

// verdict is the last line, and why it is not PASS.
type verdict struct {
	tally    harness.Tally
	freezes  []time.Duration
	moves    int
	failures []string
}

func (v *verdict) fail(format string, args ...any) {
	v.failures = append(v.failures, fmt.Sprintf(format, args...))
}

func (v *verdict) pass() bool { return len(v.failures) == 0 }

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e6) }

// String is the verdict line, after one line for each failure.
func (v *verdict) String() string {
	var b strings.Builder
	word := "PASS"
	for _, f := range v.failures {
		word = "FAIL"
		fmt.Fprintf(&b, "failed: %s\n", f)
	}
	t := v.tally
	fmt.Fprintf(&b, "verdict: %s acknowledged=%d delivered=%d lost=%d duplicates=%d moves=%d freeze_p50_ms=%s freeze_p99_ms=%s produce_p99_ms=%s produce_max_ms=%s consume_gap_max_ms=%s",
		word, t.Acknowledged, t.Delivered, t.Lost, t.Duplicates, v.moves,
		milliseconds(harness.Quantile(v.freezes, 0.5)), milliseconds(harness.Quantile(v.freezes, 0.99)),
		milliseconds(t.ProduceP99), milliseconds(t.ProduceMax), milliseconds(t.ConsumeGapMax))
	return b.String()
}

// judge prints the table of moves and decides.
func (d *demo) judge(ctx context.Context) *verdict {
	v := &verdict{tally: d.ledger.Tally()}
	t := v.tally
	if t.Acknowledged < d.minRecords {
		v.fail("%d records were acknowledged, at least %d are needed", t.Acknowledged, d.minRecords)
	}
	if t.Lost > 0 {
		v.fail("%d acknowledged records were not delivered: %s", t.Lost, strings.Join(t.FirstLost, ", "))
	}
	if t.Unknown > 0 {
		v.fail("%d records were delivered that nobody produced", t.Unknown)
	}
	if n := len(t.ProduceFailed); n > 0 {
		v.fail("%d produce requests failed after every agent was tried; first: %s", n, t.ProduceFailed[0])
	}
	if d.owners != nil {
		for _, s := range d.owners.Violations() {
			v.fail("two owners, or a broken watch: %s", s)
		}
	}
	if d.cluster == nil || ctx.Err() != nil {
		return v
	}
	limit, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	moves, err := d.cluster.API.Moves(limit, true)
	if err != nil {
		v.fail("list moves: %v", err)
		return v
	}
	v.table(moves.GetHistory())
	v.judgeKills(d.kills, moves.GetHistory())
	members, err := d.cluster.API.Members(limit)
	if err != nil {
		v.fail("list members: %v", err)
		return v
	}
	if members["agent-1"] != nil {
		v.fail("agent-1 was decommissioned and is still a member")
	}
	if err := evenly(members, 3); err != nil {
		v.fail("%v", err)
	}
	return v
}

func (v *verdict) judgeKills(kills []*kill, history []*planev1.MoveRecord) {
	if len(kills) != 3 {
		v.fail("%d of 3 kills were prepared", len(kills))
	}
	for _, k := range kills {
		if k.struck == nil {
			v.fail("the kill of %s did not hit %s", k.process, k.point)
			continue
		}
		ended := slices.ContainsFunc(history, func(r *planev1.MoveRecord) bool { return r.GetMoveId() == k.struck.MoveID })
		if !ended {
			v.fail("move %d, in which %s was killed at %s, has not ended", k.struck.MoveID, k.process, k.point)
		}
	}
}

// table prints the moves that flipped.
func (v *verdict) table(history []*planev1.MoveRecord) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "partition\tfrom\tto\tbytes\tseconds\tMB/s\tfreeze ms\tconverged")
	for _, r := range history {
		if r.GetKind() == planev1.OutcomeKind_OUTCOME_KIND_CANCELLED {
			continue
		}
		s := r.GetStats()
		freeze := s.GetFreeze().AsDuration()
		if s.GetDuration().AsDuration() > 0 {
			v.freezes = append(v.freezes, freeze)
		}
		v.moves++
		seconds := s.GetDuration().AsDuration().Seconds()
		rate := 0.0
		if seconds > 0 {
			rate = float64(s.GetBytes()) / 1e6 / seconds
		}
		fmt.Fprintf(w, "%s/%d\t%s\t%s\t%s\t%.2f\t%.1f\t%s\t%t\n", r.GetPartition().GetTopic(), r.GetPartition().GetIndex(), r.GetSource(),
			r.GetDestination(), humanize.IBytes(s.GetBytes()), seconds, rate, milliseconds(freeze), s.GetConverged())
	}
	_ = w.Flush()
}

// evenly checks that the partitions are spread over n nodes by floor and ceil.
func evenly(members map[string]*planev1.Member, n int) error {
	total := 0
	for _, p := range topics {
		total += int(p)
	}
	if len(members) != n {
		return fmt.Errorf("there are %d members, want %d", len(members), n)
	}
	owned := 0
	for _, id := range slices.Sorted(maps.Keys(members)) {
		k := int(members[id].GetOwned())
		owned += k
		if k < total/n || k > (total+n-1)/n {
			return fmt.Errorf("%s owns %d of %d partitions, want %d or %d", id, k, total, total/n, (total+n-1)/n)
		}
	}
	if owned != total {
		return fmt.Errorf("%d of %d partitions have a member as owner", owned, total)
	}
	return nil
}

func shares(members map[string]*planev1.Member) string {
	var parts []string
	for _, id := range slices.Sorted(maps.Keys(members)) {
		parts = append(parts, fmt.Sprintf("%s=%d", id, members[id].GetOwned()))
	}
	return strings.Join(parts, " ")
}
