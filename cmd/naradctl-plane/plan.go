package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

const planLong = `What the planner would do now, or what if nodes left or joined. It changes nothing.

The table has the moves in the order in which they begin: first those that begin at once, then those
that a limit holds back, and which. Below it is what can't move, and why; every node before and after;
and how long it will take, and what that estimate is made from.

  --explain   also why each move is made and what it waits for
  --drain     as if these nodes were draining; several are one plan
  --add       as if so many empty nodes joined, each with a disk like the smallest one here`

func (a *app) planCommand() *cobra.Command {
	req := &planev1.PlanMovesRequest{}
	var explain bool
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "What the planner would do now, or what if",
		Long:  planLong,
		Example: `  naradctl-plane cluster plan
  naradctl-plane cluster plan --explain --drain node-3,node-4
  naradctl-plane cluster plan --add 2 -o json | jq .estimate
  naradctl-plane cluster plan why-not orders/3`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.PlanMovesResponse, error) {
				return c.PlanMoves(ctx, req)
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { a.planTable(w, m, explain) })
		},
	}
	f := cmd.Flags()
	f.BoolVar(&explain, "explain", false, "why each move is made, and what it waits for")
	f.StringSliceVar(&req.Drain, "drain", nil, "as if these nodes were draining")
	f.Uint32Var(&req.AddNodes, "add", 0, "as if so many empty nodes joined")
	cmd.AddCommand(a.whyNotCommand())
	return cmd
}

func (a *app) planTable(w io.Writer, m *planev1.PlanMovesResponse, explain bool) {
	if len(m.GetMoves()) == 0 {
		fmt.Fprintln(w, "nothing is to be moved")
	} else {
		plannedTable(w, m.GetMoves(), explain || a.wide())
	}
	blockedTable(w, m.GetBlocked())
	fmt.Fprintln(w)
	nodesTable(w, m.GetNodes())
	fmt.Fprintln(w)
	now := 0
	for _, v := range m.GetMoves() {
		if v.GetWaits() == "" {
			now++
		}
	}
	fmt.Fprintf(w, "%s, %s: %d at once, %d wait; %d can't move\n", plural(len(m.GetMoves()), "move"), size(m.GetBytes()), now,
		len(m.GetMoves())-now, len(m.GetBlocked()))
	fmt.Fprintln(w, estimateLine(m.GetEstimate()))
	for _, n := range m.GetNotes() {
		fmt.Fprintln(w, "note: "+n)
	}
}

func plannedTable(w io.Writer, moves []*planev1.PlannedMove, explain bool) {
	head := []any{"PARTITION", "FROM", "TO", "BYTES", "BEGINS", "REASON"}
	if explain {
		head = append(head, "WAITS FOR")
	}
	row(w, head...)
	for _, v := range moves {
		to, begins := v.GetTo(), "now"
		if to == "" {
			to = "stays (not to " + v.GetOldTarget() + ")"
		}
		if v.GetWaits() != "" {
			begins = "later"
		}
		cells := []any{partitionName(v.GetPartition()), v.GetFrom(), to, size(v.GetBytes()), begins, v.GetReason()}
		if explain {
			cells = append(cells, v.GetWaits())
		}
		row(w, cells...)
	}
}

func blockedTable(w io.Writer, blocked []*planev1.BlockedMove) {
	if len(blocked) == 0 {
		return
	}
	fmt.Fprintln(w)
	row(w, "BLOCKED", "OWNER", "BYTES", "REASON")
	for _, b := range blocked {
		row(w, partitionName(b.GetPartition()), b.GetOwner(), size(b.GetBytes()), b.GetReason())
	}
}

func nodesTable(w io.Writer, nodes []*planev1.NodeForesight) {
	row(w, "NODE", "STATE", "OWNED", "BYTES", "MOVES IN", "MOVES OUT", "DISK USED", "AFTER")
	for _, n := range nodes {
		state := "alive"
		switch {
		case n.GetAdded():
			state = "added"
		case !n.GetAlive():
			state = "dead"
		case n.GetDraining():
			state = "draining"
		}
		row(w, n.GetNodeId(), state, fmt.Sprintf("%d → %d", n.GetOwnedBefore(), n.GetOwnedAfter()),
			fmt.Sprintf("%s → %s", size(n.GetBytesBefore()), size(n.GetBytesAfter())), n.GetMovesIn()+n.GetInbound(), n.GetMovesOut()+n.GetOutbound(),
			diskUsed(n.GetDiskUsedBeforeBytes(), n.GetDiskTotalBytes()), diskUsed(n.GetDiskUsedAfterBytes(), n.GetDiskTotalBytes()))
	}
}

// diskUsed is how full a disk is; empty when its size is unknown.
func diskUsed(used, total uint64) string {
	if total == 0 {
		return ""
	}
	return fmt.Sprintf("%s (%.1f%%)", size(used), float64(used)/float64(total)*100)
}

// estimateLine says how long it takes and why one thinks so.
func estimateLine(e *planev1.Estimate) string {
	if e.GetMovesInFlight()+e.GetMovesWaiting() == 0 {
		return "nothing is left to move"
	}
	left := fmt.Sprintf("left to copy: %s", size(e.GetRemainingBytes()))
	if e.GetBytesPerSecond() > 0 {
		left += fmt.Sprintf(" at %s/s", size(e.GetBytesPerSecond()))
	}
	if e.GetEta() == nil {
		return left + "; time " + e.GetBasis()
	}
	return fmt.Sprintf("%s; about %s, by %s", left, orDash(duration(e.GetEta())), e.GetBasis())
}

const whyNotLong = `Why a partition does not move, or that it does.

  settled    it is where it should be
  moving     a move is in flight
  planned    a move begins with the next round of the planner
  held back  it should move; a limit, a cap or a pause holds it back for now
  stuck      it should move and can't: no room, no receivers, a dead owner
  pinned     it can't be moved where it is, and need not`

func (a *app) whyNotCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "why-not TOPIC/INDEX",
		Short:   "Why a partition does not move",
		Long:    whyNotLong,
		Example: "  naradctl-plane cluster plan why-not orders/3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, index, err := parsePartition(args[0])
			if err != nil {
				return err
			}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.ExplainPartitionResponse, error) {
				return c.ExplainPartition(ctx, &planev1.ExplainPartitionRequest{Topic: topic, Index: index})
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { whyNotTable(w, m) })
		},
	}
}

func whyNotTable(w io.Writer, m *planev1.ExplainPartitionResponse) {
	fmt.Fprintf(w, "%s (%s, on %s) is %s\n", partitionName(m.GetPartition()), size(m.GetBytes()), m.GetOwner(),
		strings.ToUpper(enumWord(m.GetState(), "PLACEMENT_STATE_")))
	for _, r := range m.GetReasons() {
		fmt.Fprintln(w, "  "+r)
	}
	if p := m.GetPlanned(); p.GetTo() != "" {
		fmt.Fprintf(w, "  it is to go to %s\n", p.GetTo())
	}
	if m.GetNextCommand() != "" {
		fmt.Fprintln(w, "  next: "+m.GetNextCommand())
	}
}
