package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

func (a *app) forgetCommand() *cobra.Command {
	var accept, dryRun bool
	cmd := &cobra.Command{
		Use:   "forget ID --accept-loss",
		Short: "Give up a dead node whose disk is gone",
		Long: `Give up a dead node whose disk is gone. Its partitions begin anew, empty, on other nodes; what was on
its disk alone is lost, and so is what waited in its ingress queue. Copies that other nodes still hold
of them, from before they gave them away, are put into the topics again.

Refused for a node that is alive, without --accept-loss, and while a destination holds part of a
partition that could be promoted instead. When the disk turns up after all, start its agent: it can't
serve what it held, and "cluster partition adopt" brings its records back.`,
		Example: "  naradctl-plane cluster members forget node-3 --dry-run\n  naradctl-plane cluster members forget node-3 --accept-loss",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &planev1.ForgetMemberRequest{Id: args[0], AcceptLoss: accept, DryRun: dryRun, RequestId: requestID()}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.ForgetMemberResponse, error) {
				return c.ForgetMember(ctx, req)
			})
			if err != nil {
				return withBlockers(err)
			}
			return a.print(m, func(w io.Writer) { lostTable(w, args[0], m, dryRun) })
		},
	}
	cmd.Flags().BoolVar(&accept, "accept-loss", false, "its partitions are lost, and that is accepted")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be lost")
	return cmd
}

func lostTable(w io.Writer, id string, m *planev1.ForgetMemberResponse, dryRun bool) {
	if len(m.GetLost()) > 0 {
		row(w, "LOST", "BYTES", "BEGINS ANEW ON", "SALVAGED FROM")
		for _, l := range m.GetLost() {
			row(w, partitionName(l.GetPartition()), size(l.GetBytes()), l.GetNewOwner(), strings.Join(l.GetSalvagedFrom(), ", "))
		}
	}
	if dryRun {
		fmt.Fprintf(w, "dry run: forgetting %s would lose %s; nothing was changed\n", id, plural(len(m.GetLost()), "partition"))
		return
	}
	fmt.Fprintf(w, "%s is forgotten; %s began anew\n", id, plural(len(m.GetLost()), "partition"))
}

// withBlockers prints a refusal with all that it lists.
func withBlockers(err error) error {
	e := cluster.AsError(err)
	if e == nil || len(e.Blockers) < 2 {
		return err
	}
	return withCode(exitCode(err), fmt.Errorf("%w\n  %s", err, strings.Join(e.Blockers, "\n  ")))
}

func (a *app) partitionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "partition", Short: "Bring a copy of a partition back"}
	cmd.AddCommand(a.adoptCommand())
	return cmd
}

func (a *app) adoptCommand() *cobra.Command {
	var from string
	var wait bool
	cmd := &cobra.Command{
		Use:   "adopt TOPIC/INDEX --from NODE",
		Short: "Bring the records of a copy on a returned or quarantined disk back",
		Long: `Bring a copy that a node holds of a partition back: its node puts every record of it into the topic
again, as new records, and removes the copy only then. Neither the present partition's records nor the
copy's are lost; those that both have are delivered twice.

After the controllers were restored from a backup, for a partition that waits for its confirmation,
the node becomes its owner instead.`,
		Example: "  naradctl-plane cluster partition adopt orders/3 --from node-3 --wait",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, index, err := parsePartition(args[0])
			if err != nil {
				return err
			}
			if from == "" {
				return withCode(codeUsage, errors.New("--from must name a node (see: naradctl-plane cluster members)"))
			}
			req := &planev1.AdoptPartitionRequest{Topic: topic, Index: index, From: from, RequestId: requestID()}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.AdoptPartitionResponse, error) {
				return c.AdoptPartition(ctx, req)
			})
			if err != nil {
				return withBlockers(err)
			}
			if wait && !m.GetOwner() {
				if err := a.waitReclaimed(cmd.Context(), m.GetPartition(), m.GetMoveId()); err != nil {
					return err
				}
			}
			return a.print(m, func(w io.Writer) {
				switch {
				case m.GetOwner():
					fmt.Fprintf(w, "%s is the owner of %s\n", from, args[0])
				case wait:
					fmt.Fprintf(w, "what %s held of %s is in the topic again, and its copy is removed\n", from, args[0])
				default:
					fmt.Fprintf(w, "%s puts what it holds of %s into the topic (move %d); its copy goes when it has\n", from, args[0], m.GetMoveId())
				}
			})
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "node that holds the copy")
	cmd.Flags().BoolVar(&wait, "wait", false, "return when the records are in the topic again and the copy is removed, which is after reclaim_after")
	return cmd
}

// readMove reads a partition and one move of it.
func (a *app) readMove(ctx context.Context, p *planev1.Partition, move uint64) (*planev1.GetAssignmentResponse, error) {
	return call(ctx, a, func(ctx context.Context, c clients) (*planev1.GetAssignmentResponse, error) {
		return c.GetAssignment(ctx, &planev1.GetAssignmentRequest{TopicId: p.GetTopicId(), Index: p.GetIndex(), MoveId: move})
	})
}

// waitReclaimed returns when a move's source has nothing left of it.
func (a *app) waitReclaimed(ctx context.Context, p *planev1.Partition, move uint64) error {
	ctx, cancel := a.limit(ctx, true)
	defer cancel()
	ctx, stop := interruptible(ctx)
	defer stop()
	for {
		m, err := a.readMove(ctx, p, move)
		switch {
		case ctx.Err() != nil:
			return withCode(codeTimeout, errors.New("stopped watching; the salvage goes on"))
		case err != nil && !transient(apierr.FromConnect(err)):
			return err
		case err == nil && m.GetOutcome() == nil:
			return nil
		}
		if !pause(ctx, pollInterval) {
			return withCode(codeTimeout, errors.New("stopped watching; the salvage goes on"))
		}
	}
}
