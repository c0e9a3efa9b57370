package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

const decommissionLong = `Drain nodes and remove them from the cluster.

A draining node keeps serving what it owns and receives nothing new. Its partitions move away, its
ingress queue empties, and when the last copy that it gave away was opened by its new owner, it is
removed. If the node's record names a controller on the same host, that controller is removed too,
behind two guards: never below min_voters, and never while it leads.

The mark survives restarts of everything. Only --cancel clears it.

Several ids are one plan: their partitions go to the nodes that stay, and never from one leaving
node to another.

  --dry-run   what would move where, and what would keep the nodes from leaving (exit code 3 then)
  --wait      return only when the nodes are no members any more; their processes may be stopped
              and their data deleted then. Ctrl-C stops watching, not draining.`

type decommission struct {
	*app
	ids                       []string
	cancel, wait, dryRun, yes bool
	reason                    string
}

func (a *app) decommissionCommand() *cobra.Command {
	d := &decommission{app: a}
	cmd := &cobra.Command{
		Use:   "decommission ID…",
		Short: "Drain nodes and remove them",
		Long:  decommissionLong,
		Example: `  naradctl-plane cluster decommission node-3 --dry-run
  naradctl-plane cluster decommission node-3 node-4 --wait --reason "rack 7 is going"
  naradctl-plane cluster decommission node-3 --cancel`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d.ids = args
			switch {
			case d.cancel && (d.wait || d.dryRun):
				return withCode(codeUsage, errors.New("--cancel goes neither with --wait nor with --dry-run"))
			case d.cancel:
				return d.runCancel(cmd.Context())
			case d.dryRun:
				return d.runDry(cmd.Context())
			}
			return d.run(cmd.Context(), cmd.InOrStdin())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&d.cancel, "cancel", false, "clear the mark; what has moved stays where it is")
	f.BoolVar(&d.wait, "wait", false, "return when the nodes are removed")
	f.BoolVar(&d.dryRun, "dry-run", false, "only say what would happen")
	f.BoolVarP(&d.yes, "yes", "y", false, "do not ask, on a terminal")
	f.StringVar(&d.reason, "reason", "", "note that is kept with the mark")
	return cmd
}

func (d *decommission) ask(ctx context.Context, dryRun bool) (*planev1.DecommissionResponse, error) {
	req := &planev1.DecommissionRequest{
		Id: d.ids[0], OtherIds: d.ids[1:], DryRun: dryRun, Reason: d.reason, RequestId: requestID(),
	}
	return call(ctx, d.app, func(ctx context.Context, c clients) (*planev1.DecommissionResponse, error) {
		return c.Decommission(ctx, req)
	})
}

func (d *decommission) runCancel(ctx context.Context) error {
	for _, id := range d.ids {
		req := &planev1.CancelDecommissionRequest{Id: id, RequestId: requestID()}
		m, err := call(ctx, d.app, func(ctx context.Context, c clients) (*planev1.CancelDecommissionResponse, error) {
			return c.CancelDecommission(ctx, req)
		})
		if err != nil {
			return err
		}
		if err := d.print(m, func(w io.Writer) {
			fmt.Fprintf(w, "%s is not draining any more; the planner will use it again\n", id)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (d *decommission) runDry(ctx context.Context) error {
	m, err := d.ask(ctx, true)
	if err != nil {
		return err
	}
	if err := d.print(m, func(w io.Writer) { dryRunTable(w, m) }); err != nil {
		return err
	}
	if len(m.GetBlockers()) > 0 {
		return withCode(codeRefused, fmt.Errorf("%s could not leave: %s", strings.Join(d.ids, ", "), few(m.GetBlockers())))
	}
	return nil
}

func dryRunTable(w io.Writer, m *planev1.DecommissionResponse) {
	if len(m.GetMoves()) > 0 {
		plannedTable(w, m.GetMoves(), false)
	}
	blockedTable(w, m.GetBlocked())
	if len(m.GetNodes()) > 0 {
		fmt.Fprintln(w)
		nodesTable(w, m.GetNodes())
		fmt.Fprintf(w, "\n%s\n", estimateLine(m.GetEstimate()))
	}
	for _, b := range m.GetBlockers() {
		fmt.Fprintln(w, "blocked: "+b)
	}
	fmt.Fprintf(w, "dry run: %s, %s; nothing was changed\n", plural(len(m.GetMoves()), "move"), size(m.GetBytes()))
}

func (d *decommission) run(ctx context.Context, in io.Reader) error {
	if !d.yes && interactive(in, d.stderr) {
		if ok, err := d.confirm(ctx, in); err != nil || !ok {
			return err
		}
	}
	m, err := d.ask(ctx, false)
	if err != nil {
		return err
	}
	names := strings.Join(d.ids, ", ")
	show := func(w io.Writer) {
		fmt.Fprintf(w, "draining %s: %s, %s\n", names, plural(len(m.GetMoves()), "move"), size(m.GetBytes()))
		for _, b := range m.GetBlockers() {
			fmt.Fprintf(w, "  blocked for now: %s\n", b)
		}
		if !d.wait {
			fmt.Fprintln(w, "follow it: naradctl-plane cluster members")
		}
	}
	if d.wait {
		// The answer that counts comes at the end; progress is for people.
		show(d.stderr)
		return d.waitGone(ctx)
	}
	return d.print(m, show)
}

// interactive reports whether a person can be asked.
func interactive(in io.Reader, out io.Writer) bool {
	for _, f := range []any{in, out} {
		file, ok := f.(*os.File)
		if !ok {
			return false
		}
		if info, err := file.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			return false
		}
	}
	return true
}

func (d *decommission) confirm(ctx context.Context, in io.Reader) (bool, error) {
	m, err := d.ask(ctx, true)
	if err != nil {
		return false, err
	}
	for _, b := range m.GetBlockers() {
		fmt.Fprintf(d.stderr, "  blocked for now: %s\n", b)
	}
	fmt.Fprintf(d.stderr, "Drain and remove %s: %s, %s. Go on? [y/N] ",
		strings.Join(d.ids, ", "), plural(len(m.GetMoves()), "move"), estimateLine(m.GetEstimate()))
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	if a := strings.ToLower(strings.TrimSpace(line)); a != "y" && a != "yes" {
		return false, withCode(codeError, errors.New("not confirmed; nothing was changed"))
	}
	return true, nil
}

// waitGone returns when none of the nodes is a member any more.
func (d *decommission) waitGone(ctx context.Context) error {
	ctx, cancel := d.limit(ctx, true)
	defer cancel()
	ctx, stop := interruptible(ctx)
	defer stop()
	names := strings.Join(d.ids, ", ")
	last, started := "", time.Now()
	for {
		m, err := d.members(ctx)
		if ctx.Err() != nil {
			return d.detached(ctx, names)
		}
		if err != nil && !transient(err) {
			return err
		}
		if err == nil {
			left, line, err := d.progress(m)
			if err != nil {
				return err
			}
			if len(left) == 0 {
				return d.gone(m, names, time.Since(started))
			}
			if line != last {
				last = line
				fmt.Fprintf(d.stderr, "%s  %s\n", time.Now().UTC().Format(time.RFC3339), line)
			}
		} else if line := "waiting: " + err.Error(); line != last {
			last = line
			fmt.Fprintf(d.stderr, "%s  %s\n", time.Now().UTC().Format(time.RFC3339), line)
		}
		if !pause(ctx, pollInterval) {
			return d.detached(ctx, names)
		}
	}
}

// transient reports whether asking again may help: a leader is being elected, or nobody answered.
func transient(err error) bool {
	r := cluster.ReasonOf(err)
	return r == 0 || r == cluster.ReasonNoLeader || r == cluster.ReasonLimit
}

// progress says which nodes are left and what they wait for.
func (d *decommission) progress(m *planev1.ListMembersResponse) (left []string, line string, err error) {
	var parts []string
	for _, e := range m.GetMembers() {
		id := e.GetNode().GetNodeId()
		if !slices.Contains(d.ids, id) {
			continue
		}
		left = append(left, id)
		if !e.GetNode().GetDraining() {
			return nil, "", withCode(codeError, fmt.Errorf("%s is not draining any more: somebody cancelled the decommission", id))
		}
		p := fmt.Sprintf("%s: owns %d (%s), %d leaving, %d unopened, %d records in its queue", id, e.GetOwned(), size(e.GetBytes()),
			e.GetOutbound(), e.GetUnopened(), e.GetIngressRecords())
		if e.GetQuarantined() > 0 {
			p += fmt.Sprintf(", %d in quarantine", e.GetQuarantined())
		}
		if len(e.GetBlockers()) > 0 {
			p += "; " + few(e.GetBlockers())
		}
		if e.GetDrain().GetBytesPerSecond() > 0 {
			p += "; " + estimateLine(e.GetDrain())
		}
		parts = append(parts, p)
	}
	return left, strings.Join(parts, " | "), nil
}

// shownBlockers bounds how many are printed in one line; -o json has all.
const shownBlockers = 10

// few is a list in a line of text.
func few(list []string) string {
	if n := len(list) - shownBlockers; n > 0 {
		return strings.Join(list[:shownBlockers], "; ") + fmt.Sprintf("; and %d more (-o json has all)", n)
	}
	return strings.Join(list, "; ")
}

func (d *decommission) gone(m *planev1.ListMembersResponse, names string, took time.Duration) error {
	return d.print(m, func(w io.Writer) {
		verb := "is no member"
		if len(d.ids) > 1 {
			verb = "are no members"
		}
		fmt.Fprintf(w, "%s %s any more (%s): stop the process; its data may be deleted\n", names, verb, took.Round(100*time.Millisecond))
	})
}

func (d *decommission) detached(ctx context.Context, names string) error {
	why := "interrupted"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = "timed out"
	}
	return withCode(codeTimeout, fmt.Errorf("%s: stopped watching; the drain of %s goes on (see it: naradctl-plane cluster members; "+
		"end it: naradctl-plane cluster decommission --cancel %s)", why, names, strings.Join(d.ids, " ")))
}
