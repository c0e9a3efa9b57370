package sim

import (
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/move"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// operator is whoever gives commands, and whoever breaks things.
type operator struct {
	w *World
	// at is the host from which commands come.
	at *node
	// faults says that hosts crash and links are cut.
	faults bool
	topics int
}

func (w *World) newOperator() *operator {
	at := &node{w: w, id: "op", host: "op", clk: w.newClock(), life: w.newLife("op")}
	return &operator{w: w, at: at}
}

// mayLeave says that nothing lies aside on a draining node.
func (o *operator) mayLeave(id cluster.NodeID) bool {
	n := o.w.node(id)
	if n == nil || !n.up() {
		return false
	}
	copies, err := n.store.Copies()
	for _, c := range copies {
		if c.Place != store.Staged {
			return false
		}
	}
	return err == nil && len(n.outs) == 0
}

func (o *operator) must(p *proc, make func() *storagev1.Command) fsm.Result {
	for {
		r, err := o.at.command(p, make)
		if err == nil || cluster.ReasonOf(err) != cluster.ReasonNoLeader && cluster.AsError(err) != nil {
			return r
		}
		p.sleep(200 * time.Millisecond)
	}
}

func simSettings(w *World) cluster.Settings {
	s := cluster.DefaultSettings()
	s.HandoffTTL = w.between(500*time.Millisecond, 4*time.Second)
	s.ReclaimAfter = w.between(0, 3*time.Second)
	s.ForcePromoteAfter = w.between(2*time.Second, 6*time.Second)
	s.RebalanceDelay = w.between(0, 2*time.Second)
	s.LagBytes = cluster.Bytes(1 + w.rng.IntN(2000))
	s.MaxPasses, s.StallPasses = uint32(1+w.rng.IntN(6)), uint32(1+w.rng.IntN(3))
	s.MaxMovesPerNode = uint32(1 + w.rng.IntN(4))
	return s
}

// begin sets the cluster up: settings, then topics with owners among the nodes.
func (o *operator) begin(p *proc) {
	w := o.w
	set := fsm.SettingsRecord(simSettings(w))
	o.must(p, func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_SetSettings{SetSettings: &storagev1.SetSettings{Settings: set}}}
	})
	for len(w.truth.view.Nodes) < len(w.nodes) {
		p.sleep(100 * time.Millisecond)
	}
	for range 1 + w.rng.IntN(2) {
		o.topics++
		name := fmt.Sprintf("t%d", o.topics)
		var owners []string
		for range 1 + w.rng.IntN(3) {
			owners = append(owners, string(pick(w, w.nodes).id))
		}
		o.must(p, func() *storagev1.Command {
			return &storagev1.Command{Command: &storagev1.Command_CreateTopic{CreateTopic: &storagev1.CreateTopic{Name: name, Owners: owners}}}
		})
	}
	o.faults = true
	w.log("faults begin")
	o.at.life.spawn(o.operate)
	o.at.life.spawn(o.disturb)
}

// operate gives commands at random.
func (o *operator) operate(p *proc) {
	w := o.w
	for !w.calm {
		p.sleep(w.between(50*time.Millisecond, 1500*time.Millisecond))
		switch k := w.rng.IntN(20); {
		case k < 15:
			o.move(p)
		case k < 17:
			o.cancel(p)
		case k < 18:
			o.drain(p, pick(w, w.nodes).id, true)
		default:
			o.drain(p, pick(w, w.nodes).id, false)
		}
	}
}

func (o *operator) move(p *proc) {
	w := o.w
	ps := w.partitions()
	if len(ps) == 0 {
		return
	}
	a, to := w.truth.view.Assignments[pick(w, ps)], pick(w, w.nodes)
	if a.Moving() && w.rng.IntN(4) > 0 || to.id == a.Owner || to.id == a.Target {
		return
	}
	w.log("operator: %s to %s", a.Partition, to.id)
	_, _ = o.at.command(p, func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_SetTarget{SetTarget: &storagev1.SetTarget{
			Partition: refOf(a.Partition), ExpectOwner: string(a.Owner), ExpectTarget: string(a.Target), ExpectEpoch: uint64(a.Epoch),
			Target: string(to.id), Reason: "operator",
		}}}
	})
}

func (o *operator) cancel(p *proc) {
	w := o.w
	for _, q := range w.partitions() {
		a := w.truth.view.Assignments[q]
		_, dead := w.truth.deadSince[a.Owner]
		if !a.Moving() || w.rng.IntN(2) == 0 || dead && w.rng.IntN(5) > 0 {
			continue
		}
		w.log("operator: cancel move %d of %s", a.MoveID, q)
		_, _ = o.at.command(p, func() *storagev1.Command {
			return &storagev1.Command{Command: &storagev1.Command_CancelMove{CancelMove: &storagev1.CancelMove{
				Partition: refOf(q), MoveId: uint64(a.MoveID),
			}}}
		})
		return
	}
}

func (o *operator) drain(p *proc, id cluster.NodeID, on bool) {
	o.w.log("operator: draining of %s %t", id, on)
	_, _ = o.at.command(p, func() *storagev1.Command {
		return &storagev1.Command{Command: &storagev1.Command_SetDraining{SetDraining: &storagev1.SetDraining{
			NodeIds: []string{string(id)}, Draining: on,
		}}}
	})
}

// disturb breaks things at random, and mends what it broke after a while.
func (o *operator) disturb(p *proc) {
	w := o.w
	for !w.calm {
		p.sleep(w.between(300*time.Millisecond, 5*time.Second))
		if w.calm {
			return
		}
		switch k := w.rng.IntN(100); {
		case k < 45:
			o.crashNode()
		case k < 65:
			c := pick(w, w.ctls)
			if c.up() {
				c.crash()
				w.after(w.between(0, 6*time.Second), c.restart)
			}
		case k < 97:
			o.split()
		default:
			o.kill()
		}
	}
}

// crashNode prefers a node from which a partition is being moved.
func (o *operator) crashNode() {
	w := o.w
	n := pick(w, w.nodes)
	for _, m := range w.nodes {
		for _, k := range sortedKeys(m.outs, comparePM) {
			if m.outs[k].st.Phase < handoff.Redirecting && w.rng.IntN(2) == 0 {
				n = m
			}
		}
	}
	o.strike(n)
}

func (o *operator) strike(n *node) {
	w := o.w
	if !n.up() {
		return
	}
	n.crash(w.rng.IntN(3) == 0)
	down := w.between(0, 3*time.Second)
	if w.rng.IntN(2) == 0 {
		down = w.between(8*time.Second, 35*time.Second)
	}
	w.after(down, n.boot)
}

// mayStrike crashes one side of a move, now and then, as it performs an effect.
func (o *operator) mayStrike(dest *node, source cluster.NodeID, x move.Effect) {
	w := o.w
	odds := 20
	if _, copying := x.(move.CopyPass); copying {
		odds = 90 // what may end in a promotion
	}
	if !o.faults || !w.permille(odds) {
		return
	}
	n := w.node(source)
	if n == nil || w.rng.IntN(4) == 0 {
		n = dest
	}
	w.after(w.between(0, 50*time.Millisecond), func() {
		if !w.calm {
			o.strike(n)
		}
	})
}

// split cuts a host off from some others, one way or both.
func (o *operator) split() {
	w := o.w
	var hosts []host
	for _, c := range w.ctls {
		hosts = append(hosts, c.host)
	}
	for _, n := range w.nodes {
		hosts = append(hosts, n.host)
	}
	a := pick(w, hosts)
	oneWay := w.rng.IntN(3) == 0
	w.log("split of %s, one way %t", a, oneWay)
	all := w.rng.IntN(2) == 0
	for _, b := range hosts {
		if a != b && (all || w.rng.IntN(2) == 0) {
			w.net.split(a, b, oneWay)
			w.after(w.between(500*time.Millisecond, 14*time.Second), func() {
				delete(w.net.cut, link{a, b})
				delete(w.net.cut, link{b, a})
			})
		}
	}
}

// kill takes one host with its disk, once in a run, if others remain.
func (o *operator) kill() {
	w := o.w
	for _, n := range w.nodes {
		if n.lost {
			return
		}
	}
	if len(w.nodes) > 3 {
		pick(w, w.nodes).die()
	}
}

// mend ends all faults.
func (o *operator) mend() {
	w := o.w
	w.log("faults end")
	w.calm, o.faults = true, false
	w.net.heal()
	for _, c := range w.ctls {
		if c.up() {
			c.crash()
		}
		c.restart()
	}
	for _, n := range w.nodes {
		n.boot()
	}
	o.at.life.spawn(func(p *proc) {
		for _, n := range w.nodes {
			o.drain(p, n.id, false)
		}
	})
}
