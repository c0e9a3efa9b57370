package planner

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// TestScripts runs the stories in testdata. Its verbs are documented above their cases.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := &world{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return w.run(t, d)
		})
	})
}

func (w *world) run(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	// nodes replaces the nodes; one a line, see parseNodes.
	case "nodes":
		w.Nodes = parseNodes(t, d.Input)
		return ""

	// partitions replaces the partitions; one topic a line, see parsePartitions.
	case "partitions":
		w.Partitions = parsePartitions(t, d.Input)
		return ""

	// node ID ATTRIBUTE… changes or adds a node.
	case "node":
		id := cluster.NodeID(d.CmdArgs[0].Key)
		n := w.node(id)
		if n == nil {
			w.Nodes = append(w.Nodes, Node{ID: id, Alive: true})
			n = &w.Nodes[len(w.Nodes)-1]
		}
		for _, a := range d.CmdArgs[1:] {
			setNode(t, n, a.String())
		}
		return ""

	// plan shows the plan without carrying it out. Limits: max, per, high, paused, hold.
	case "plan":
		return formatResult(Plan(w.View, scanLimits(t, d)))

	// start plans and sets the targets.
	case "start":
		r := Plan(w.View, scanLimits(t, d))
		w.apply(t, r)
		return formatResult(r)

	// cool lets all partitions of a topic be such as moved a moment ago, or not with "cool TOPIC off".
	case "cool":
		topic := topicID(t, d.CmdArgs[0].Key)
		for i := range w.Partitions {
			if w.Partitions[i].ID.Topic == topic {
				w.Partitions[i].Cooling = !d.HasArg("off")
			}
		}
		return ""

	// flip ends all moves that can end, and shows how many partitions each node owns then.
	case "flip":
		for i := range w.Partitions {
			w.flip(&w.Partitions[i])
		}
		return w.summary()

	// settle plans and carries out until nothing is left to do.
	case "settle":
		plans := 0
		var last Result
		moves := w.settle(t, scanLimits(t, d), func(r Result) { plans++; last = r })
		out := fmt.Sprintf("%d moves in %d plans\n%s", moves, plans-1, w.summary())
		if len(last.Blocked)+last.Waiting+last.OnHold+last.Cooling > 0 {
			out += formatResult(last)
		}
		return out

	// show prints where each topic's partitions are.
	case "show":
		return w.show()

	// place COUNT [parent=topic] shows the owners of a new topic.
	case "place":
		req := Request{}
		var parent uint64
		d.ScanArgs(t, "count", &req.Count)
		d.MaybeScanArgs(t, "parent", &parent)
		req.Parent = cluster.TopicID(parent)
		owners, err := Place(w.View, scanLimits(t, d), req)
		if err != nil {
			e := cluster.AsError(err)
			return fmt.Sprintf("%s: %s\n%s\n", e.Reason, e.Message, strings.Join(e.Blockers, "\n"))
		}
		return fmt.Sprintln(owners)

	// drain ID… shows the dry run.
	case "drain":
		var ids []cluster.NodeID
		for _, a := range d.CmdArgs {
			if a.Key != "max" && a.Key != "per" && a.Key != "high" && a.Key != "paused" {
				ids = append(ids, cluster.NodeID(a.Key))
			}
		}
		p, err := Drain(w.View, scanLimits(t, d), ids)
		if err != nil {
			return fmt.Sprintf("%s: %s\n", cluster.ReasonOf(err), err)
		}
		out := formatResult(Result{Moves: p.Moves, Blocked: p.Blocked})
		for _, x := range p.Destinations {
			room := "unknown room"
			if !x.Unlimited {
				room = formatBytes(x.Room) + " of room"
			}
			out += fmt.Sprintf("%s receives %d, %s, %s\n", x.Node, x.Moves, formatBytes(x.Bytes), room)
		}
		return out + fmt.Sprintf("total %s\n", formatBytes(p.Bytes))
	}
	t.Fatalf("unknown verb %q", d.Cmd)
	return ""
}

func scanLimits(t *testing.T, d *datadriven.TestData) Limits {
	lim := Limits{Paused: d.HasArg("paused"), HoldRebalancing: d.HasArg("hold")}
	d.MaybeScanArgs(t, "max", &lim.MaxInFlight)
	d.MaybeScanArgs(t, "per", &lim.MaxPerNode)
	d.MaybeScanArgs(t, "high", &lim.HighDiskPercent)
	return lim
}

func (w *world) summary() string {
	var b strings.Builder
	for i, n := range w.owned() {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %d", w.Nodes[i].ID, n)
	}
	return b.String() + "\n"
}

func (w *world) show() string {
	var b strings.Builder
	var topic cluster.TopicID
	for _, p := range w.Partitions {
		if p.ID.Topic != topic {
			if topic != 0 {
				b.WriteString("\n")
			}
			topic = p.ID.Topic
			fmt.Fprintf(&b, "%d:", topic)
		}
		b.WriteString(" " + string(p.Owner))
		if p.Target != "" {
			b.WriteString(">" + string(p.Target))
		}
	}
	return b.String() + "\n"
}
