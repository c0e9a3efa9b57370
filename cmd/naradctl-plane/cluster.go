package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// clusterCommand is the group of operators' commands.
func (a *app) clusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "See and change the cluster",
		Long: `See and change the cluster. Every controller answers; what needs the leader is forwarded.

Begin with the status: it says what is wrong, if anything, and which command to run next.

  naradctl-plane cluster status`,
	}
	a.clientFlags(cmd)
	cmd.AddCommand(a.statusCommand(), a.membersCommand(), a.movesCommand(), a.planCommand(), a.eventsCommand(), a.decommissionCommand(),
		a.moveCommand(), a.controllersCommand(), a.settingsCommand(), a.rebalanceCommand(), a.maintenanceCommand(),
		a.partitionCommand(), a.snapshotCommand())
	return cmd
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "One screen: a verdict, why, and the next command to run",
		Long: `One screen: a verdict, why, and the next command to run.

  OK         everything is where it should be
  MOVING     moves run, nothing is wrong
  DEGRADED   a node or a controller is away, a quorum is at risk, or a disk is nearly full
  STALLED    something should move and can't; the reasons name it
  NO LEADER  the controllers have no leader (exit code 6): most of them must run

Partitions that are not being moved are served whatever the verdict.`,
		Example: "  naradctl-plane cluster status\n  naradctl-plane cluster status -o json | jq -r .verdict",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.GetClusterStatusResponse, error) {
				return c.GetClusterStatus(ctx, &planev1.GetClusterStatusRequest{})
			})
			if err != nil {
				return err
			}
			if err := a.print(m, func(w io.Writer) { statusTable(w, m) }); err != nil {
				return err
			}
			if m.GetVerdict() == planev1.ClusterVerdict_CLUSTER_VERDICT_NO_LEADER {
				return withCode(codeNoLeader, errors.New("the controllers have no leader: start controllers until most of them run"))
			}
			return nil
		},
	}
}

func statusTable(w io.Writer, m *planev1.GetClusterStatusResponse) {
	fmt.Fprintln(w, strings.ToUpper(enumWord(m.GetVerdict(), "CLUSTER_VERDICT_")))
	findings(w, m.GetFindings())
	fmt.Fprintln(w)
	leader := m.GetLeader()
	if leader == "" {
		leader = "none"
	}
	row(w, "cluster", m.GetClusterId())
	row(w, "controllers", fmt.Sprintf("%s, %s, leader %s, term %d", plural(int(m.GetVoters()), "voter"),
		plural(int(m.GetLearners()), "learner"), leader, m.GetTerm()))
	row(w, "nodes", fmt.Sprintf("%d alive, %d dead, %d draining", m.GetNodesAlive(), m.GetNodesDead(), m.GetNodesDraining()))
	row(w, "moves", fmt.Sprintf("%d in flight, %d blocked", m.GetMovesInFlight(), m.GetMovesBlocked()))
	if e := m.GetEstimate(); e != nil {
		row(w, "estimate", estimateLine(e))
	}
	row(w, "data", fmt.Sprintf("%s, %s, %s", plural(int(m.GetTopics()), "topic"), plural(int(m.GetPartitions()), "partition"), size(m.GetBytes())))
	row(w, "revision", m.GetRevision())
}

// findings prints reasons, and after those with the same remedy the command to run next.
func findings(w io.Writer, list []*planev1.StatusFinding) {
	for i, f := range list {
		fmt.Fprintln(w, "  "+f.GetText())
		next := f.GetNextCommand()
		if next != "" && (i+1 == len(list) || list[i+1].GetNextCommand() != next) {
			fmt.Fprintln(w, "    next: "+next)
		}
	}
}

func (a *app) membersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "members [ID…]",
		Short: "List the nodes with what they hold",
		Long: `List the nodes with what they hold, and what a draining one waits for. With ids only those nodes, and then
with every single partition that keeps them from leaving, and why.`,
		Example: "  naradctl-plane cluster members\n  naradctl-plane cluster members -o wide\n  naradctl-plane cluster members node-3",
		RunE: func(cmd *cobra.Command, ids []string) error {
			m, err := a.members(cmd.Context())
			if err == nil && len(ids) > 0 {
				err = selectMembers(m, ids)
			}
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { a.membersTable(w, m, len(ids) > 0) })
		},
	}
	cmd.AddCommand(a.forgetCommand())
	return cmd
}

// selectMembers keeps the named nodes.
func selectMembers(m *planev1.ListMembersResponse, ids []string) error {
	for _, id := range ids {
		if !slices.ContainsFunc(m.GetMembers(), func(e *planev1.Member) bool { return e.GetNode().GetNodeId() == id }) {
			return cluster.NotFound("node %s is no member", id)
		}
	}
	m.Members = slices.DeleteFunc(m.Members, func(e *planev1.Member) bool { return !slices.Contains(ids, e.GetNode().GetNodeId()) })
	return nil
}

func (a *app) members(ctx context.Context) (*planev1.ListMembersResponse, error) {
	return call(ctx, a, func(ctx context.Context, c clients) (*planev1.ListMembersResponse, error) {
		return c.ListMembers(ctx, &planev1.ListMembersRequest{})
	})
}

func (a *app) membersTable(w io.Writer, m *planev1.ListMembersResponse, all bool) {
	head := []any{"NODE", "STATUS", "DRAINING", "OWNED", "IN", "OUT", "BYTES", "DISK FREE", "ZONE", "HEARTBEAT"}
	if a.wide() {
		head = append(head, "ADDRESS", "INCARNATION", "INGRESS", "QUARANTINE", "UNOPENED", "VOTER", "JOINED", "STORE")
	}
	row(w, head...)
	for _, e := range m.GetMembers() {
		n := e.GetNode()
		free := ""
		if e.GetDiskTotalBytes() > 0 {
			free = fmt.Sprintf("%s (%d%%)", size(e.GetDiskFreeBytes()), e.GetDiskFreeBytes()*100/e.GetDiskTotalBytes())
		}
		heartbeat := "never"
		if e.GetHeartbeatAge() != nil {
			heartbeat = duration(e.GetHeartbeatAge()) + " ago"
		}
		cells := []any{
			n.GetNodeId(), enumWord(n.GetStatus(), "NODE_STATUS_"), yes(n.GetDraining()), e.GetOwned(), e.GetInbound(),
			e.GetOutbound(), size(e.GetBytes()), free, n.GetZone(), heartbeat,
		}
		if a.wide() {
			cells = append(cells, n.GetAddress(), n.GetIncarnation(), fmt.Sprintf("%d (%s)", e.GetIngressRecords(), size(e.GetIngressBytes())),
				e.GetQuarantined(), e.GetUnopened(), n.GetVoter(), timestamp(n.GetJoinedAt()), n.GetStoreId())
		}
		row(w, cells...)
	}
	for _, e := range m.GetMembers() {
		if n := e.GetNode(); n.GetMaintenance() {
			fmt.Fprintf(w, "%s is in maintenance%s\n", n.GetNodeId(), because(n.GetMaintenanceReason()))
		}
		if n := e.GetNode(); n.GetUnclaimed() {
			fmt.Fprintf(w, "%s has not said since the restore what it holds\n", n.GetNodeId())
		}
		id := e.GetNode().GetNodeId()
		blockers := e.GetBlockers()
		if all && len(e.GetDrainBlockers()) > 0 {
			blockers = nil
			for _, b := range e.GetDrainBlockers() {
				blockers = append(blockers, b.GetText())
			}
		}
		for _, b := range blockers {
			fmt.Fprintf(w, "%s is draining: %s\n", id, b)
		}
		if d := e.GetDrain(); d.GetRemainingBytes() > 0 || d.GetMovesInFlight()+d.GetMovesWaiting() > 0 {
			fmt.Fprintf(w, "%s is draining: %s\n", id, estimateLine(d))
		}
		if n := len(e.GetDrainBlockers()); n > len(e.GetBlockers()) && !all {
			fmt.Fprintf(w, "all that %s waits for: naradctl-plane cluster members %s\n", id, id)
		}
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
