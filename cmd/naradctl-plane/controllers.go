package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

func (a *app) controllersCommand() *cobra.Command {
	list := func(cmd *cobra.Command, _ []string) error {
		m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.ListControllersResponse, error) {
			return c.ListControllers(ctx, &planev1.ListControllersRequest{})
		})
		if err != nil {
			return err
		}
		return a.print(m, func(w io.Writer) { controllersTable(w, m) })
	}
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "List, remove, and transfer leadership of controllers",
		Long: `List the controllers. A new one joins by itself, as a learner until it has caught up:

  naradctl-plane controller --name ctl-4 --listen 10.0.0.4:7400 --insecure --join 10.0.0.1:7400`,
		Args: cobra.NoArgs,
		RunE: list,
	}
	cmd.AddCommand(
		&cobra.Command{Use: "list", Short: "List the controllers", Args: cobra.NoArgs, RunE: list},
		a.removeControllerCommand(), a.transferCommand(),
	)
	return cmd
}

func controllersTable(w io.Writer, m *planev1.ListControllersResponse) {
	row(w, "NAME", "ROLE", "LEADER", "ACTIVE", "LAG", "ADDRESS", "RAFT ID")
	voters := 0
	for _, s := range m.GetControllers() {
		c := s.GetController()
		role := "learner"
		if !c.GetLearner() {
			role = "voter"
			voters++
		}
		row(w, c.GetName(), role, yes(s.GetLeader()), yes(s.GetActive()), s.GetLagEntries(), c.GetAddress(), c.GetRaftId())
	}
	fmt.Fprintf(w, "term %d; %d of %s may be away\n", m.GetTerm(), m.GetFailureTolerance(), plural(voters, "voter"))
}

func (a *app) removeControllerCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a controller for ever",
		Long: `Remove a controller for ever. Refused when it would leave fewer voters than min_voters, unless
--force; a leader hands leadership over first. Its process stops by itself and says why; its data
directory is of no use afterwards.`,
		Example: "  naradctl-plane cluster controllers remove ctl-4",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &planev1.RemoveControllerRequest{Name: args[0], Force: force, RequestId: requestID()}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.RemoveControllerResponse, error) {
				return c.RemoveController(ctx, req)
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { fmt.Fprintf(w, "%s is no controller any more\n", args[0]) })
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "go below min_voters")
	return cmd
}

func (a *app) transferCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "transfer-leader [NAME]",
		Short: "Hand leadership to a voter; without a name to the most up-to-date one",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &planev1.TransferLeadershipRequest{}
			if len(args) == 1 {
				req.To = args[0]
			}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.TransferLeadershipResponse, error) {
				return c.TransferLeadership(ctx, req)
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { fmt.Fprintf(w, "%s leads\n", m.GetLeader()) })
		},
	}
}
