package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/internal/wire"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

const eventsLong = `Who did what, to what, why, and what came of it: the audit of the cluster. It is replicated, written
with its effect, never changed, and bounded: the oldest of 10000 events goes when another one comes.

There are events of nodes that join, restart, are declared dead, return or are removed; of drains that
begin or are cancelled; of settings, with old and new values; of topics; of controllers; of moves that an
operator starts or cancels, and of forced promotions. What the planner does with single partitions is in
cluster moves --history instead. What was refused has changed nothing and is no event.

WHO is an operator, as far as known: the name in the client certificate, or the address with what
the client says of its user; the leader; or a node's agent.`

type events struct {
	*app
	since, node string
	newest      uint32
	follow      bool
}

func (a *app) eventsCommand() *cobra.Command {
	e := &events{app: a}
	cmd := &cobra.Command{
		Use:   "events",
		Short: "List who did what, why, and what came of it",
		Long:  eventsLong,
		Example: `  naradctl-plane cluster events --since 2h
  naradctl-plane cluster events --node node-3 --limit 1000
  naradctl-plane cluster events --since 2026-01-31T00:00:00Z -o json
  naradctl-plane cluster events --follow -o json | jq -r .kind`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			req := &planev1.ListEventsRequest{Node: e.node, Limit: e.newest}
			if e.since != "" {
				t, err := parseSince(e.since, time.Now())
				if err != nil {
					return withCode(codeUsage, err)
				}
				req.Since = timestamppb.New(t)
			}
			if e.follow {
				return e.runFollow(cmd.Context(), req)
			}
			m, err := e.list(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { e.table(w, m) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&e.since, "since", "", "only what came since then: a duration such as 2h, or a time in RFC 3339")
	f.StringVar(&e.node, "node", "", "only what concerns this node")
	f.Uint32VarP(&e.newest, "limit", "n", 100, "the newest so many, at most 10000")
	f.BoolVarP(&e.follow, "follow", "f", false, "go on with what comes until interrupted; goes on through elections")
	return cmd
}

// idleLimit is how long nothing may arrive on a stream before another controller is asked.
const idleLimit = 15 * time.Second

// parseSince understands how long ago, and when.
func parseSince(s string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(s); err == nil {
		if d < 0 {
			return time.Time{}, fmt.Errorf("--since %s: must not be negative; it says how long ago", s)
		}
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("--since %q: is neither a duration such as 2h nor a time such as %s", s, now.UTC().Format(time.RFC3339))
	}
	return t, nil
}

func (e *events) list(ctx context.Context, req *planev1.ListEventsRequest) (*planev1.ListEventsResponse, error) {
	return call(ctx, e.app, func(ctx context.Context, c clients) (*planev1.ListEventsResponse, error) {
		return c.ListEvents(ctx, req)
	})
}

func (e *events) table(w io.Writer, m *planev1.ListEventsResponse) {
	head := []any{"TIME", "WHO", "WHAT", "SUBJECT", "WHY", "RESULT"}
	if e.wide() {
		head = append(head, "ID", "REVISION", "NODES")
	}
	row(w, head...)
	for _, v := range m.GetEvents() {
		row(w, e.cells(v)...)
	}
	if n := m.GetNewestId(); n > 0 {
		fmt.Fprintf(w, "%d of %d that are kept (at most %d)\n", len(m.GetEvents()), n-m.GetOldestId()+1, m.GetKeptLimit())
	}
}

func (e *events) cells(v *planev1.Event) []any {
	cells := []any{
		timestamp(v.GetAt()), wire.ActorFromProto(v.GetActor()).String(), enumWord(v.GetKind(), "EVENT_KIND_"), v.GetSubject(), v.GetReason(), v.GetResult(),
	}
	if e.wide() {
		cells = append(cells, v.GetId(), v.GetRevision(), strings.Join(v.GetNodes(), ","))
	}
	return cells
}

// runFollow prints what is there, and then what comes.
func (e *events) runFollow(ctx context.Context, req *planev1.ListEventsRequest) error {
	ctx, cancel := e.app.limit(ctx, true)
	defer cancel()
	ctx, stop := interruptible(ctx)
	defer stop()
	m, err := e.list(ctx, req)
	if err != nil {
		return err
	}
	for _, v := range m.GetEvents() {
		if err := e.show(v); err != nil {
			return err
		}
	}
	after, trouble := m.GetNewestId(), ""
	for at := 0; ctx.Err() == nil; at++ {
		got := after
		err := e.stream(ctx, e.addrs[at%len(e.addrs)], &after)
		var gone *printError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &gone):
			return gone.err
		case cluster.ReasonOf(err) == cluster.ReasonRevisionCompacted:
			// Others came faster than they could be read.
			fmt.Fprintf(e.stderr, "events after %d are not kept any more; going on with the oldest that is\n", after)
			after = 0
			continue
		case cluster.ReasonOf(err) == cluster.ReasonInvalid:
			return err
		}
		if after > got {
			trouble = ""
		}
		if text := fmt.Sprint(err); text != trouble {
			trouble = text
			fmt.Fprintf(e.stderr, "%s  waiting: %v\n", time.Now().UTC().Format(time.RFC3339), err)
		}
		if !pause(ctx, pollInterval) {
			return nil
		}
	}
	return nil
}

// printError is that nobody reads the output any more.
type printError struct{ err error }

func (e *printError) Error() string { return e.err.Error() }

// stream follows at one controller until that ends, and moves *after on.
func (e *events) stream(ctx context.Context, address string, after *uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A connection whose packets are dropped reports no error; keep-alives come every few seconds.
	idle := time.AfterFunc(idleLimit, cancel)
	defer idle.Stop()
	one, err := e.connectOne(address)
	if err != nil {
		return err
	}
	defer one.Close()
	s, err := one.Cluster().WatchEvents(ctx, &planev1.WatchEventsRequest{AfterId: *after, Node: e.node})
	if err != nil {
		return apierr.FromConnect(err)
	}
	defer func() { _ = s.Close() }() // it has nothing to report that Receive has not
	for {
		m, err := s.Receive()
		if err != nil {
			return apierr.FromConnect(err)
		}
		idle.Reset(idleLimit)
		if v := m.GetEvent(); v != nil {
			if err := e.show(v); err != nil {
				return &printError{err}
			}
		}
		*after = max(*after, m.GetId())
	}
}

func (e *events) show(v *planev1.Event) error {
	if done, err := e.streamed(v); done {
		return err
	}
	var b strings.Builder
	for i, c := range e.cells(v) {
		if i > 0 {
			b.WriteString("  ")
		}
		b.WriteString(orDash(fmt.Sprint(c)))
	}
	_, err := fmt.Fprintln(e.stdout, b.String())
	return err
}
