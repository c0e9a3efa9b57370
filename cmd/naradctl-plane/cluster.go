package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

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
	cmd.AddCommand(a.statusCommand(), a.membersCommand(), a.movesCommand(), a.decommissionCommand(),
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
  DEGRADED   a node or a controller is away
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
	for _, r := range m.GetReasons() {
		fmt.Fprintln(w, "  "+r)
	}
	if m.GetNextCommand() != "" {
		fmt.Fprintln(w, "  next: "+m.GetNextCommand())
	}
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
	row(w, "data", fmt.Sprintf("%s, %s, %s", plural(int(m.GetTopics()), "topic"), plural(int(m.GetPartitions()), "partition"), size(m.GetBytes())))
	row(w, "revision", m.GetRevision())
}

func (a *app) membersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "members",
		Short:   "List the nodes with what they hold",
		Example: "  naradctl-plane cluster members\n  naradctl-plane cluster members -o wide",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := a.members(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { a.membersTable(w, m) })
		},
	}
	cmd.AddCommand(a.forgetCommand())
	return cmd
}

func (a *app) members(ctx context.Context) (*planev1.ListMembersResponse, error) {
	return call(ctx, a, func(ctx context.Context, c clients) (*planev1.ListMembersResponse, error) {
		return c.ListMembers(ctx, &planev1.ListMembersRequest{})
	})
}

func (a *app) membersTable(w io.Writer, m *planev1.ListMembersResponse) {
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
		for _, b := range e.GetBlockers() {
			fmt.Fprintf(w, "%s is draining: %s\n", e.GetNode().GetNodeId(), b)
		}
	}
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}
