package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

func (a *app) topicCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "topic", Short: "Create, list, describe and delete topics"}
	a.clientFlags(cmd)
	cmd.AddCommand(a.topicCreateCommand(), a.topicListCommand(), a.topicDescribeCommand(), a.topicDeleteCommand())
	return cmd
}

func (a *app) topicCreateCommand() *cobra.Command {
	var (
		partitions uint32
		parent     string
		retention  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a topic; its partitions are placed by the planner's rules",
		Long: `Create a topic. Its partitions are placed on nodes that are alive, not draining and have room.

--parent names a topic whose partition of the same index is kept on another node, where that costs
nothing. It is about placement alone: no record is copied.`,
		Example: `  naradctl-plane topic create orders --partitions 6
  naradctl-plane topic create orders-audit --partitions 6 --parent orders --retention 168h`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &planev1.CreateTopicRequest{Name: args[0], Partitions: partitions, Parent: parent, RequestId: requestID()}
			if retention != 0 {
				req.Retention = durationpb.New(retention)
			}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.CreateTopicResponse, error) {
				return c.CreateTopic(ctx, req)
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) {
				fmt.Fprintf(w, "created %s with %s\n", m.GetTopic().GetName(), plural(int(m.GetTopic().GetPartitions()), "partition"))
			})
		},
	}
	f := cmd.Flags()
	f.Uint32VarP(&partitions, "partitions", "p", 1, "number of partitions, 1 to 100000, for ever")
	f.StringVar(&parent, "parent", "", "topic to keep same-index partitions away from")
	f.DurationVar(&retention, "retention", 0, "how long records are kept, by their own time; 0 is for ever")
	return cmd
}

func (a *app) topicListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List topics",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.ListTopicsResponse, error) {
				return c.ListTopics(ctx, &planev1.ListTopicsRequest{})
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) {
				row(w, "TOPIC", "PARTITIONS", "PARENT", "RETENTION", "ID", "CREATED")
				for _, t := range m.GetTopics() {
					row(w, t.GetName(), t.GetPartitions(), t.GetParent(), duration(t.GetRetention()), t.GetTopicId(), timestamp(t.GetCreatedAt()))
				}
			})
		},
	}
}

func (a *app) topicDescribeCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "describe NAME",
		Short:   "Show where a topic's partitions are",
		Example: "  naradctl-plane topic describe orders",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.DescribeTopicResponse, error) {
				return c.DescribeTopic(ctx, &planev1.DescribeTopicRequest{Name: args[0]})
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) {
				t := m.GetTopic()
				fmt.Fprintf(w, "%s: id %d, %s", t.GetName(), t.GetTopicId(), plural(int(t.GetPartitions()), "partition"))
				if t.GetParent() != "" {
					fmt.Fprintf(w, ", parent %s", t.GetParent())
				}
				fmt.Fprintln(w)
				row(w, "PARTITION", "OWNER", "TARGET", "EPOCH", "MOVE", "HANDOFF", "OPENED", "REASON")
				for _, as := range m.GetAssignments() {
					handoff := fmt.Sprint(as.GetHandoff())
					if as.GetGranted() {
						handoff += " (live)"
					}
					row(w, partitionName(as.GetPartition()), as.GetOwner(), as.GetTarget(), as.GetEpoch(), as.GetMoveId(), handoff,
						yes(as.GetOpened()), as.GetReason())
				}
			})
		},
	}
}

func (a *app) topicDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a topic",
		Long: `Delete a topic and end its moves. The data is set aside on its nodes and removed later. A topic that
is created again under the same name shares nothing with it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &planev1.DeleteTopicRequest{Name: args[0], RequestId: requestID()}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.DeleteTopicResponse, error) {
				return c.DeleteTopic(ctx, req)
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { fmt.Fprintf(w, "deleted %s\n", args[0]) })
		},
	}
}
