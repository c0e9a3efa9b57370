package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// pollInterval is how often commands that wait or follow ask again.
const pollInterval = 500 * time.Millisecond

func (a *app) movesCommand() *cobra.Command {
	var history, watch bool
	var limit uint32
	cmd := &cobra.Command{
		Use:   "moves",
		Short: "List moves in flight, those that can't start, and ended ones",
		Long: `List moves in flight and partitions that should move and can't, with the reason.

Phases: pending (the destination has not begun), catching up (copying while the source accepts
writes), frozen (the fixed tail is copied and verified), flipping, opening, waiting (an attempt
failed, the next one comes by itself), blocked (the error names what is needed).

The time for all of it is what is left at the rates at which destinations copy; the last line says how it
was estimated.

--history adds ended moves with what they cost: bytes, time, the freeze, and how much was read
while frozen, which is the tail and not the partition. The newest 10000 are kept.`,
		Example: "  naradctl-plane cluster moves\n  naradctl-plane cluster moves --watch\n  naradctl-plane cluster moves --history -o wide",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch {
				return a.watchMoves(cmd.Context(), history)
			}
			m, err := a.moves(cmd.Context(), history, limit)
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) { a.movesTable(w, m, history) })
		},
	}
	cmd.Flags().BoolVar(&history, "history", false, "also ended moves, newest last")
	cmd.Flags().Uint32VarP(&limit, "limit", "n", 100, "with --history, the newest so many; 0 for all that are kept")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print a line at each change and end until interrupted; goes on through elections")
	return cmd
}

func (a *app) moves(ctx context.Context, history bool, limit uint32) (*planev1.ListMovesResponse, error) {
	return call(ctx, a, func(ctx context.Context, c clients) (*planev1.ListMovesResponse, error) {
		return c.ListMoves(ctx, &planev1.ListMovesRequest{History: history, HistoryLimit: limit})
	})
}

func (a *app) moveHead() []any {
	head := []any{"PARTITION", "FROM", "TO", "PHASE", "DONE", "RATE", "LAG", "ETA", "FROZEN", "ATTEMPT", "REASON"}
	if a.wide() {
		head = append(head, "MOVE", "HANDOFF", "PASSES", "STARTED", "LAST ERROR")
	}
	return head
}

func (a *app) movesTable(w io.Writer, m *planev1.ListMovesResponse, history bool) {
	if len(m.GetMoves()) == 0 {
		fmt.Fprintln(w, "no moves in flight")
	} else {
		row(w, a.moveHead()...)
		for _, v := range m.GetMoves() {
			row(w, a.moveCells(v)...)
		}
	}
	blockedTable(w, m.GetBlocked())
	if e := m.GetEstimate(); e.GetMovesInFlight()+e.GetMovesWaiting() > 0 {
		fmt.Fprintf(w, "\n%d in flight, %d wait; %s\n", e.GetMovesInFlight(), e.GetMovesWaiting(), estimateLine(e))
	}
	if history {
		fmt.Fprintln(w)
		a.historyTable(w, m.GetHistory())
		fmt.Fprintf(w, "%d of %d ended moves that are kept (at most %d)\n", len(m.GetHistory()), m.GetHistoryKept(), m.GetHistoryKeptLimit())
	}
}

func (a *app) moveCells(v *planev1.Move) []any {
	as, p := v.GetAssignment(), v.GetProgress()
	phase, done, rate, lag, attempt := "pending", "", "", "", ""
	if p != nil {
		phase = enumWord(p.GetPhase(), "MOVE_PHASE_")
		done = fmt.Sprintf("%s/%s", size(p.GetDoneBytes()), size(p.GetTotalBytes()))
		if p.GetBytesPerSecond() > 0 {
			rate = size(p.GetBytesPerSecond()) + "/s"
		}
		lag = size(p.GetLagBytes())
		attempt = strconv.Itoa(int(p.GetAttempt()))
		if p.GetNonConverged() {
			phase += " (non-converged)"
		}
	}
	reason := as.GetReason()
	if p.GetLastError() != "" && !a.wide() {
		reason += "; " + p.GetLastError()
	}
	cells := []any{partitionName(as.GetPartition()), as.GetOwner(), as.GetTarget(), phase, done, rate, lag, duration(v.GetEta()), duration(p.GetFrozenFor()), attempt, reason}
	if a.wide() {
		cells = append(cells, as.GetMoveId(), as.GetHandoff(), p.GetPasses(), timestamp(as.GetMoveStartedAt()), p.GetLastError())
	}
	return cells
}

func (a *app) historyTable(w io.Writer, list []*planev1.MoveRecord) {
	head := []any{"ENDED", "PARTITION", "FROM", "TO", "HOW", "BYTES", "TOOK", "FREEZE", "ATTEMPTS", "REASON"}
	if a.wide() {
		head = append(head, "MOVE", "PASSES", "CONVERGED", "READ FROZEN", "STARTED")
	}
	row(w, head...)
	for _, r := range list {
		s := r.GetStats()
		cells := []any{
			timestamp(r.GetEndedAt()), partitionName(r.GetPartition()), r.GetSource(), r.GetDestination(),
			enumWord(r.GetKind(), "OUTCOME_KIND_"), size(s.GetBytes()), duration(s.GetDuration()), duration(s.GetFreeze()),
			s.GetAttempts(), r.GetReason(),
		}
		if a.wide() {
			cells = append(cells, r.GetMoveId(), s.GetPasses(), yes(s.GetConverged()), size(s.GetFrozenReadBytes()), timestamp(r.GetStartedAt()))
		}
		row(w, cells...)
	}
}

// watchMoves prints a line when a move appears, changes or ends. With -o json or yaml it prints the whole answer
// at each change. It goes on through the election of a leader.
func (a *app) watchMoves(ctx context.Context, history bool) error {
	ctx, cancel := a.limit(ctx, true)
	defer cancel()
	ctx, stop := interruptible(ctx)
	defer stop()
	w := &movesWatch{app: a, last: map[string]string{}}
	table := a.output == "table" || a.output == "wide"
	answered := false
	for {
		m, err := a.moves(ctx, history || table, watchedHistory)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (!answered || !transient(err)):
			return err
		case err != nil:
			w.complain(err)
		case table:
			answered, w.trouble = true, ""
			w.changed(m)
		default:
			answered, w.trouble = true, ""
			if err := w.whole(m); err != nil {
				return err
			}
		}
		if !pause(ctx, pollInterval) {
			return nil
		}
	}
}

// watchedHistory is how many ended moves a watch looks back over at each poll.
const watchedHistory = 1000

// movesWatch is what a watch has printed.
type movesWatch struct {
	*app
	begun   bool
	seen    string            // the last whole answer
	last    map[string]string // rows by partition and move
	ended   map[uint64]bool   // moves in the history, which is bounded
	trouble string
}

// complain says once why there is no news.
func (w *movesWatch) complain(err error) {
	if text := err.Error(); text != w.trouble {
		w.trouble = text
		fmt.Fprintf(w.stderr, "%s  waiting: %s\n", time.Now().UTC().Format(time.RFC3339), text)
	}
}

// whole prints the answer unless it is the last one.
func (w *movesWatch) whole(m *planev1.ListMovesResponse) error {
	b, err := encode(m)
	if err != nil || string(b) == w.seen {
		return err
	}
	w.seen = string(b)
	_, err = w.streamed(m)
	return err
}

// watchRow pads columns to usual widths: later rows are not known when one is printed.
func watchRow(w io.Writer, cells ...any) {
	widths := []int{20, 14, 10, 10, 13, 17, 11, 8, 7, 7, 7}
	for i, c := range cells {
		text := fmt.Sprint(c)
		if text == "" {
			text = "-"
		}
		if i < len(widths) && i < len(cells)-1 {
			fmt.Fprintf(w, "%-*s  ", widths[i], text)
		} else {
			fmt.Fprint(w, text, "  ")
		}
	}
	fmt.Fprintln(w)
}

// changed prints the rows that differ from those before, and the moves that ended since.
func (w *movesWatch) changed(m *planev1.ListMovesResponse) {
	now := time.Now().UTC().Format(time.RFC3339)
	if !w.begun {
		watchRow(w.stdout, append([]any{"TIME"}, w.moveHead()...)...)
	}
	ended := map[uint64]bool{}
	for _, r := range m.GetHistory() {
		ended[r.GetMoveId()] = true
		if w.begun && !w.ended[r.GetMoveId()] {
			s := r.GetStats()
			watchRow(w.stdout, timestamp(r.GetEndedAt()), partitionName(r.GetPartition()), r.GetSource(), r.GetDestination(),
				enumWord(r.GetKind(), "OUTCOME_KIND_"), size(s.GetBytes()), fmt.Sprintf("in %s, frozen for %s, %s",
					orDash(duration(s.GetDuration())), orDash(duration(s.GetFreeze())), r.GetReason()))
		}
	}
	w.begun, w.ended = true, ended
	present := map[string]bool{}
	for _, v := range m.GetMoves() {
		key := fmt.Sprintf("%s@%d", partitionName(v.GetAssignment().GetPartition()), v.GetAssignment().GetMoveId())
		present[key] = true
		var b strings.Builder
		watchRow(&b, append([]any{now}, w.moveCells(v)...)...)
		// The time alone is no change.
		if text := strings.TrimPrefix(b.String(), now); w.last[key] != text {
			w.last[key] = text
			fmt.Fprint(w.stdout, b.String())
		}
	}
	maps.DeleteFunc(w.last, func(key, _ string) bool { return !present[key] })
}

func (a *app) moveCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "move", Short: "Start, cancel, retry or promote one move by hand"}
	cmd.AddCommand(a.moveStartCommand(), a.moveCancelCommand(), a.moveRetryCommand(), a.forcePromoteCommand())
	return cmd
}

func (a *app) moveStartCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "start TOPIC/INDEX --to NODE",
		Short: "Move one partition to a node",
		Long: `Move one partition to a node. The planner evens partitions out again unless it is paused:

  naradctl-plane cluster rebalance pause`,
		Example: "  naradctl-plane cluster move start orders/3 --to node-2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, index, err := parsePartition(args[0])
			if err != nil {
				return err
			}
			if to == "" {
				return withCode(codeUsage, errors.New("--to must name a node (see: naradctl-plane cluster members)"))
			}
			req := &planev1.StartMoveRequest{Topic: topic, Index: index, To: to, RequestId: requestID()}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.StartMoveResponse, error) {
				return c.StartMove(ctx, req)
			})
			if err != nil {
				return err
			}
			return a.print(m, func(w io.Writer) {
				as := m.GetAssignment()
				fmt.Fprintf(w, "moving %s/%d from %s to %s (move %d); watch it: naradctl-plane cluster moves --watch\n",
					topic, index, as.GetOwner(), as.GetTarget(), as.GetMoveId())
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "node to move to")
	return cmd
}

func (a *app) moveCancelCommand() *cobra.Command {
	var id uint64
	cmd := &cobra.Command{
		Use:   "cancel TOPIC/INDEX",
		Short: "Cancel a move, or learn that it is too late",
		Long: `Cancel a move. The answer is definite: cancelled, and the owner stays, or too late, and how the
move had ended (exit code 3). The planner may start it again; pause it to prevent that.`,
		Example: "  naradctl-plane cluster move cancel orders/3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, index, err := parsePartition(args[0])
			if err != nil {
				return err
			}
			req := &planev1.CancelMoveRequest{Topic: topic, Index: index, MoveId: id, RequestId: requestID()}
			m, err := call(cmd.Context(), a, func(ctx context.Context, c clients) (*planev1.CancelMoveResponse, error) {
				return c.CancelMove(ctx, req)
			})
			if err != nil {
				return err
			}
			err = a.print(m, func(w io.Writer) {
				if m.GetCancelled() {
					fmt.Fprintf(w, "cancelled: %s/%d stays where it is\n", topic, index)
				}
			})
			if err == nil && !m.GetCancelled() {
				o := m.GetOutcome()
				return withCode(codeRefused, fmt.Errorf("too late: move %d of %s/%d had ended (%s, from %s to %s)", o.GetMoveId(),
					topic, index, enumWord(o.GetKind(), "OUTCOME_KIND_"), o.GetSource(), o.GetDestination()))
			}
			return err
		},
	}
	cmd.Flags().Uint64Var(&id, "move", 0, "only this move id; 0 is the present one, whichever it is")
	return cmd
}

// parsePartition splits topic/index.
func parsePartition(s string) (string, uint32, error) {
	i := strings.LastIndexByte(s, '/')
	if i > 0 {
		if n, err := strconv.ParseUint(s[i+1:], 10, 32); err == nil {
			return s[:i], uint32(n), nil
		}
	}
	return "", 0, withCode(codeUsage, fmt.Errorf("%q is not a partition: write TOPIC/INDEX, such as orders/3", s))
}
