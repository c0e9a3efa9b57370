package main

import (
	"context"
	"errors"
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
		Short: "List, add, promote and remove controllers, and transfer leadership",
		Long: `List the controllers. A new one joins by itself, as a learner until it has caught up:

  naradctl-plane controller --name ctl-4 --listen 10.0.0.4:7400 --insecure --join 10.0.0.1:7400`,
		Args: cobra.NoArgs,
		RunE: list,
	}
	cmd.AddCommand(
		&cobra.Command{Use: "list", Short: "List the controllers", Args: cobra.NoArgs, RunE: list},
		a.addControllerCommand(), a.promoteControllerCommand(), a.removeControllerCommand(), a.transferCommand(),
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

func (a *app) addControllerCommand() *cobra.Command {
	var address, store string
	cmd := &cobra.Command{
		Use:   "add NAME --address HOST:PORT --store-id UUID",
		Short: "Admit a controller as a learner before it is started",
		Long: `Admit a controller as a learner. One that is started with --join does so by itself; this is for when it
must not be able to reach the cluster before it is admitted. The store id is in the file store-id of its
data directory. It becomes a voter when it has caught up.`,
		Example: "  naradctl-plane cluster controllers add ctl-4 --address 10.0.0.4:7400 --store-id 4f0c…",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if address == "" || store == "" {
				return withCode(codeUsage, errors.New("--address and --store-id must be given; or start the controller with --join, which needs neither"))
			}
			req := &planev1.AddControllerRequest{Name: args[0], Address: address, StoreId: store, RequestId: requestID()}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.AddControllerResponse, error) {
				return c.AddController(ctx, req)
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) {
				fmt.Fprintf(w, "%s is admitted as a learner (raft id %d); start it with --join; it votes when it has caught up\n", args[0], m.GetController().GetRaftId())
			})
		},
	}
	cmd.Flags().StringVar(&address, "address", "", "host:port under which the others reach it")
	cmd.Flags().StringVar(&store, "store-id", "", "identity of its data directory")
	return cmd
}

func (a *app) promoteControllerCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "promote NAME",
		Short: "Make a learner a voter now, or learn how far behind it is",
		Long: `Make a learner a voter. The leader does so by itself once it has caught up; this says why it has not.
Refused, with the number of entries, while it is behind.`,
		Example: "  naradctl-plane cluster controllers promote ctl-4",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.PromoteControllerResponse, error) {
				return c.PromoteController(ctx, &planev1.PromoteControllerRequest{Name: args[0]})
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) {
				if m.GetAlready() {
					fmt.Fprintf(w, "%s is a voter already\n", args[0])
				} else {
					fmt.Fprintf(w, "%s is a voter\n", args[0])
				}
			})
		},
	}
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
