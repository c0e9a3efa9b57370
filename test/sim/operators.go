package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	leading "github.com/naradctl/naradctl-plane/internal/controller"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
	"github.com/naradctl/naradctl-plane/transfer"
	"github.com/naradctl/naradctl-plane/transfer/handoff"
	"github.com/naradctl/naradctl-plane/transfer/move"
)

// operator is whoever gives commands, and whoever breaks things.
type operator struct {
	w *World
	// at is the host from which commands come.
	at *node
	// faults says that hosts crash and links are cut.
	faults bool
}

func (w *World) newOperator() *operator {
	at := &node{w: w, id: "op", host: "op", clk: w.newClock(), life: w.newLife("op")}
	return &operator{w: w, at: at}
}

// lead has fn run by the controller that leads, holding its lock.
func (o *operator) lead(p *proc, fn func(ctx context.Context, c *leading.Controller) error) error {
	_, err := ask(p, o.at, func(p *proc, c *controller) (struct{}, error) {
		return struct{}{}, c.exclusive(p, func(ctx context.Context) error { return fn(ctx, c.lead) })
	})
	return err
}

// insist repeats what must come about, until it is refused for good.
func (o *operator) insist(p *proc, fn func(ctx context.Context, c *leading.Controller) error) error {
	for {
		err := o.lead(p, fn)
		if err == nil || transfer.Definite(err) {
			return err
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

// begin sets the cluster up: settings, then topics.
func (o *operator) begin(p *proc) {
	w := o.w
	for len(w.truth.view.Nodes) < len(w.nodes) {
		p.sleep(100 * time.Millisecond)
	}
	if err := o.insist(p, o.settings()); err != nil {
		w.violated("I1", "settings: %v", err)
	}
	for i := range 1 + w.rng.IntN(2) {
		o.create(p, fmt.Sprintf("t%d", i+1))
	}
	o.faults = true
	w.log("faults begin")
	o.at.life.spawn(o.operate)
	o.at.life.spawn(o.disturb)
}

func (o *operator) settings() func(context.Context, *leading.Controller) error {
	set := simSettings(o.w)
	return func(ctx context.Context, c *leading.Controller) error {
		_, _, err := c.UpdateSettings(ctx, func(cluster.Settings) cluster.Settings { return set }, "")
		return err
	}
}

// create makes a topic, which the leader places. A name that exists is fine: an answer may be lost.
func (o *operator) create(p *proc, name string) {
	w := o.w
	n, retention := uint32(1+w.rng.IntN(3)), time.Duration(0)
	if w.rng.IntN(3) == 0 {
		retention = w.between(10*time.Second, 40*time.Second)
	}
	w.log("operator: topic %s, retention %s", name, retention)
	_ = o.insist(p, func(ctx context.Context, c *leading.Controller) error {
		_, _, err := c.CreateTopic(ctx, name, n, "", retention, "")
		return err
	})
}

// operate gives commands at random.
func (o *operator) operate(p *proc) {
	w := o.w
	for !w.calm {
		p.sleep(w.between(50*time.Millisecond, 1500*time.Millisecond))
		switch k := w.rng.IntN(100); {
		case k < 66:
			o.move(p)
		case k < 74:
			o.cancel(p)
		case k < 80:
			o.drain(p, pick(w, w.nodes).id, true)
		case k < 90:
			o.drain(p, pick(w, w.nodes).id, false)
		case k < 93:
			w.log("operator: settings")
			_ = o.lead(p, o.settings())
		case k < 96:
			o.recreate(p)
		default:
			o.membership(p)
		}
	}
}

// recreate deletes a topic, and mostly makes it again under its name.
func (o *operator) recreate(p *proc) {
	w := o.w
	topics := w.topics()
	if len(topics) == 0 {
		return
	}
	t := pick(w, topics)
	w.log("operator: delete topic %s, %d", t.Name, t.ID)
	for {
		_, err := o.at.command(p, func() *storagev1.Command {
			return &storagev1.Command{Command: &storagev1.Command_DeleteTopic{DeleteTopic: &storagev1.DeleteTopic{TopicId: uint64(t.ID)}}}
		})
		if err == nil || transfer.Definite(err) {
			break
		}
		p.sleep(200 * time.Millisecond)
	}
	if w.rng.IntN(4) > 0 || len(topics) == 1 {
		o.create(p, t.Name)
	}
}

// maxControllers bounds how many controllers there ever are.
const maxControllers = 6

// membership adds a controller, or removes one of more than three.
func (o *operator) membership(p *proc) {
	w := o.w
	members := w.members()
	if len(members) > 3 {
		c := pick(w, members)
		w.log("operator: remove controller %s", c.host)
		_ = o.lead(p, func(ctx context.Context, l *leading.Controller) error {
			_, err := l.RemoveController(ctx, cluster.ControllerName(c.host), false)
			return err
		})
		return
	}
	if len(w.ctls) >= maxControllers {
		return
	}
	name := fmt.Sprintf("c%d", len(w.ctls)+1)
	w.log("operator: add controller %s", name)
	var rec cluster.Controller
	err := o.insist(p, func(ctx context.Context, l *leading.Controller) (err error) {
		_, rec, _, err = l.AddController(ctx, cluster.ControllerName(name), name, cluster.StoreID(name), "")
		return err
	})
	if err == nil {
		w.join(uint64(rec.RaftID), name)
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
	_ = o.lead(p, func(ctx context.Context, c *leading.Controller) error {
		if !on {
			_, err := c.CancelDecommission(ctx, id, "")
			return err
		}
		_, err := c.Decommission(ctx, []cluster.NodeID{id}, "operator", false, "")
		return err
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
		case k < 52:
			o.fill()
		case k < 68:
			c := pick(w, w.members())
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

// fill has a disk full for a while.
func (o *operator) fill() {
	w := o.w
	n := pick(w, w.nodes)
	if !n.up() || n.fs.full {
		return
	}
	fs := n.fs
	w.log("the disk of %s is full", n.id)
	fs.full = true
	w.after(w.between(time.Second, 12*time.Second), func() { fs.full = false })
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
	for _, c := range w.members() {
		if c.up() {
			c.crash()
		}
		c.restart()
	}
	for _, n := range w.nodes {
		if n.up() {
			n.fs.full = false
		}
		n.boot()
	}
	o.at.life.spawn(func(p *proc) {
		for _, n := range w.nodes {
			_ = o.insist(p, func(ctx context.Context, c *leading.Controller) error {
				_, err := c.CancelDecommission(ctx, n.id, "")
				return err
			})
		}
	})
}
