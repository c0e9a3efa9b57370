package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

func (a *app) moveRetryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "retry TOPIC/INDEX",
		Short: "End the back-off of a move that waits or is blocked",
		Long: `End the back-off of a move that waits or is blocked: its destination tries again as soon as it is
told, with its next heartbeat. For when what kept it away is mended, such as a full disk.`,
		Example: "  naradctl-plane cluster move retry orders/3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, index, err := parsePartition(args[0])
			if err != nil {
				return err
			}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.RetryMoveResponse, error) {
				return c.RetryMove(ctx, &planev1.RetryMoveRequest{Topic: topic, Index: index})
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) {
				v := m.GetMove()
				was := enumWord(v.GetProgress().GetPhase(), "MOVE_PHASE_")
				if e := v.GetProgress().GetLastError(); e != "" {
					was += ": " + e
				}
				fmt.Fprintf(w, "%s tries again to take %s (it was %s)\n", v.GetAssignment().GetTarget(), args[0], was)
			})
		},
	}
}

type promotion struct {
	*app
	name       string
	topic      string
	index      uint32
	acceptLoss bool
}

// promoteWait bounds the wait for the destination's answer, unless --timeout was given.
const promoteWait = time.Minute

func (a *app) forcePromoteCommand() *cobra.Command {
	p := &promotion{app: a}
	cmd := &cobra.Command{
		Use:   "force-promote TOPIC/INDEX",
		Short: "Promote the copy of a move whose source is dead",
		Long: `Have the destination of a move take the partition over with what it has copied, now, without waiting
for force_promote_after. The source must be dead, and must have answered in this move.

A copy that does not reach what the source had acknowledged is promoted only with --accept-loss; the
answer says which offsets may be missing. When the source's disk comes back, everything that the copy
never had is put into the topic again.`,
		Example: "  naradctl-plane cluster move force-promote orders/3\n  naradctl-plane cluster move force-promote orders/3 --accept-loss",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			p.name = args[0]
			if p.topic, p.index, err = parsePartition(args[0]); err != nil {
				return err
			}
			return p.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&p.acceptLoss, "accept-loss", false, "promote a copy that is not complete, too")
	return cmd
}

func (p *promotion) run(ctx context.Context) error {
	if !p.timeoutSet {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, promoteWait)
		defer cancel()
	}
	m, err := call(ctx, p.app, func(ctx context.Context, c clients) (*planev1.ForcePromoteMoveResponse, error) {
		return c.ForcePromoteMove(ctx, &planev1.ForcePromoteMoveRequest{Topic: p.topic, Index: p.index, AcceptLoss: p.acceptLoss})
	})
	if err != nil {
		return err
	}
	return p.await(ctx, m)
}

// await returns what became of the promotion: the outcome, or the gate that is shut.
func (p *promotion) await(ctx context.Context, asked *planev1.ForcePromoteMoveResponse) error {
	ctx, cancel := p.limit(ctx, true)
	defer cancel()
	ctx, stop := interruptible(ctx)
	defer stop()
	as := asked.GetMove().GetAssignment()
	began := time.Now()
	last := ""
	for {
		m, err := p.readMove(ctx, as.GetPartition(), as.GetMoveId())
		if err == nil && m.GetMoveState() != planev1.MoveState_MOVE_STATE_CURRENT {
			return p.ended(as, m, asked.GetKnownHwm())
		}
		// A gate that was shut before the order arrived says nothing about it.
		if moves, err := p.moves(ctx, false, 0); err == nil && time.Since(began) > 2*pollInterval {
			for _, v := range moves.GetMoves() {
				if v.GetAssignment().GetMoveId() == as.GetMoveId() {
					last = v.GetProgress().GetLastError()
				}
			}
			if strings.Contains(last, "completeness") && !p.acceptLoss {
				return withCode(codeRefused, fmt.Errorf("%s is not promoted: %s (override: --accept-loss)", p.name, last))
			}
			if strings.HasPrefix(last, "gate reached") || strings.HasPrefix(last, "gate incarnation") {
				return withCode(codeRefused, fmt.Errorf("%s can't be promoted: %s: what was copied may be another life's; bring %s back, or forget it", p.name, last, as.GetOwner()))
			}
		}
		if !pause(ctx, pollInterval) {
			return withCode(codeTimeout, fmt.Errorf("%s is not promoted yet (%s); see: naradctl-plane cluster moves -o wide", p.name, orDash(last)))
		}
	}
}

func (p *promotion) ended(as *planev1.Assignment, m *planev1.GetAssignmentResponse, hwm uint64) error {
	o := m.GetOutcome()
	if o.GetKind() != planev1.OutcomeKind_OUTCOME_KIND_FORCED {
		return withCode(codeRefused, fmt.Errorf("%s was not promoted: the move ended otherwise (%s)", p.name, enumWord(o.GetKind(), "OUTCOME_KIND_")))
	}
	return p.print(m, func(w io.Writer) {
		leo := o.GetPromotedLeo()
		fmt.Fprintf(w, "%s is promoted: %s owns it, up to offset %d (exclusive)\n", p.name, as.GetTarget(), leo)
		if n := o.GetMissingAtMost(); n > 0 {
			fmt.Fprintf(w, "lost: at most %s, offsets %d to %d (exclusive); they come back when the disk of %s does\n", plural(int(n), "record"), leo, leo+n, as.GetOwner())
		} else if p.acceptLoss && hwm == 0 {
			fmt.Fprintf(w, "lost: what %s acknowledged from offset %d on is not known; it comes back when its disk does\n", as.GetOwner(), leo)
		}
	})
}

func (a *app) maintenanceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "maintenance",
		Short: "Leave a node alone while somebody works on it",
		Long: `Leave a node alone while somebody works on its host. No move to or from it is begun, new topics keep
off it, and what it owns is not promoted elsewhere while it is away. It serves on. Moves that are under
way go on. A drain and this exclude each other: a node in maintenance is not decommissioned, and the
drain of one that is put into maintenance waits for its end.`,
	}
	var reason string
	set := func(ctx context.Context, id string, on bool) error {
		req := &planev1.SetMaintenanceRequest{Id: id, Maintenance: on, Reason: reason, RequestId: requestID()}
		m, err := call(ctx, a, func(ctx context.Context, c clients) (*planev1.SetMaintenanceResponse, error) {
			return c.SetMaintenance(ctx, req)
		})
		if err != nil {
			return err
		}
		return a.print(m, func(w io.Writer) {
			if on {
				fmt.Fprintf(w, "%s is in maintenance; end it: naradctl-plane cluster maintenance stop %s\n", id, id)
			} else {
				fmt.Fprintf(w, "%s is not in maintenance any more\n", id)
			}
		})
	}
	start := &cobra.Command{
		Use: "start ID", Short: "Put a node into maintenance", Args: cobra.ExactArgs(1),
		Example: "  naradctl-plane cluster maintenance start node-3 --reason \"new memory\"",
		RunE:    func(cmd *cobra.Command, args []string) error { return set(cmd.Context(), args[0], true) },
	}
	start.Flags().StringVar(&reason, "reason", "", "note that is kept with the mark")
	cmd.AddCommand(start, &cobra.Command{
		Use: "stop ID", Short: "End a node's maintenance", Args: cobra.ExactArgs(1),
		Example: "  naradctl-plane cluster maintenance stop node-3",
		RunE:    func(cmd *cobra.Command, args []string) error { return set(cmd.Context(), args[0], false) },
	})
	return cmd
}

func (a *app) rebalanceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rebalance",
		Short: "Pause and resume the setting of targets",
		Long: `Pause and resume the setting of targets. While it is paused the planner begins no move; moves that are
under way go on, and drains wait. "cluster move start" works all the same.`,
	}
	set := func(use, short string, paused bool) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.NoArgs, Example: "  naradctl-plane cluster rebalance " + use,
			RunE: func(cmd *cobra.Command, _ []string) error {
				req := &planev1.UpdateSettingsRequest{Settings: &planev1.Settings{RebalancePaused: &paused}, RequestId: requestID()}
				m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.UpdateSettingsResponse, error) {
					return c.UpdateSettings(ctx, req)
				})
				if err != nil {
					return err
				}
				return a.print(m, func(w io.Writer) {
					was := m.GetPrevious().GetRebalancePaused()
					switch {
					case was == paused && paused:
						fmt.Fprintln(w, "rebalancing was paused already")
					case was == paused:
						fmt.Fprintln(w, "rebalancing was not paused")
					case paused:
						fmt.Fprintln(w, "rebalancing is paused; moves under way go on")
					default:
						fmt.Fprintln(w, "rebalancing goes on")
					}
				})
			},
		}
	}
	cmd.AddCommand(set("pause", "Begin no moves", true), set("resume", "Begin moves again", false), &cobra.Command{
		Use: "status", Short: "Say whether moves are begun, and how many wait", Args: cobra.NoArgs, Example: "  naradctl-plane cluster rebalance status",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.GetClusterStatusResponse, error) {
				return c.GetClusterStatus(ctx, &planev1.GetClusterStatusRequest{})
			})
			if err != nil {
				return err
			}
			if s.GetVerdict() == planev1.ClusterVerdict_CLUSTER_VERDICT_NO_LEADER {
				return withCode(codeNoLeader, errors.New("the controllers have no leader"))
			}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.GetSettingsResponse, error) {
				return c.GetSettings(ctx, &planev1.GetSettingsRequest{})
			})
			if err != nil {
				return err
			}
			return a.print(s, func(w io.Writer) {
				state := "on"
				if m.GetSettings().GetRebalancePaused() {
					state = "paused"
				}
				row(w, "rebalancing", state)
				row(w, "in flight", fmt.Sprintf("%d (at most %d)", s.GetMovesInFlight(), m.GetSettings().GetMaxInFlightMoves()))
				row(w, "waiting", s.GetMovesWaiting())
				row(w, "blocked", s.GetMovesBlocked())
			})
		},
	})
	return cmd
}
