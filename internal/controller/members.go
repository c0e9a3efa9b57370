package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/consensus"
	"github.com/naradctl/naradctl-plane/fsm"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// converge makes the recorded controllers and the consensus configuration agree, one step for each member.
// busy says that a step waits for time (a learner that catches up).
//
// A member of the configuration without a record is recorded: so do the first members get theirs. A
// recorded voter that is no member was removed: its record goes. A recorded learner that is no member is
// being added: it is added again.
func (c *Controller) converge(ctx context.Context, w world) (busy bool, err error) {
	st := c.backend.Status()
	for _, m := range st.Members {
		rec, known := recorded(w.controllers, m.ID)
		if m.Role == consensus.Learner {
			busy = true
			if err := c.promote(ctx, m); err == nil {
				m.Role = consensus.Voter
			} else if !errors.Is(err, consensus.ErrNotReady) {
				c.log.Info("learner not promoted yet", zap.String("controller", m.Name), zap.Error(err))
			}
		}
		want := cluster.Controller{
			Name: cluster.ControllerName(m.Name), RaftID: cluster.RaftID(m.ID), Address: m.Address,
			StoreID: cluster.StoreID(m.StoreID), Learner: m.Role == consensus.Learner,
		}
		if known && rec == want {
			continue
		}
		if _, err := c.put(ctx, want, ""); err != nil {
			return busy, fmt.Errorf("record controller %s: %w", m.Name, err)
		}
	}
	for _, rec := range w.controllers {
		if _, ok := memberByID(st, consensus.ID(rec.RaftID)); ok {
			continue
		}
		if rec.Learner {
			busy = true
			if err := c.addLearner(ctx, rec); err != nil {
				c.log.Warn("controller not added yet; tried again", zap.String("controller", string(rec.Name)), zap.Error(err))
			}
			continue
		}
		if err := c.forget(ctx, rec.Name); err != nil {
			return busy, err
		}
	}
	return busy, nil
}

func recorded(cs []cluster.Controller, id consensus.ID) (cluster.Controller, bool) {
	for _, c := range cs {
		if c.RaftID == cluster.RaftID(id) {
			return c, true
		}
	}
	return cluster.Controller{}, false
}

func (c *Controller) put(ctx context.Context, rec cluster.Controller, requestID string) (fsm.Result, error) {
	return c.do(ctx, &storagev1.Command{RequestId: requestID, Command: &storagev1.Command_PutController{PutController: &storagev1.PutController{
		Name: string(rec.Name), RaftId: uint64(rec.RaftID), Address: rec.Address, StoreId: string(rec.StoreID), Learner: rec.Learner,
	}}})
}

func (c *Controller) forget(ctx context.Context, name cluster.ControllerName) error {
	_, err := c.do(ctx, &storagev1.Command{Command: &storagev1.Command_RemoveController{
		RemoveController: &storagev1.RemoveController{Name: string(name)},
	}})
	if err != nil {
		return fmt.Errorf("remove the record of controller %s: %w", name, err)
	}
	return nil
}

func (c *Controller) promote(ctx context.Context, m consensus.MemberStatus) error {
	pctx, cancel := context.WithTimeout(ctx, c.cfg.ProposeTimeout)
	defer cancel()
	if err := c.backend.Promote(pctx, m.ID); err != nil {
		return err
	}
	c.log.Info("controller promoted to voter", zap.String("controller", m.Name))
	return nil
}

func (c *Controller) addLearner(ctx context.Context, rec cluster.Controller) error {
	actx, cancel := context.WithTimeout(ctx, c.cfg.ProposeTimeout)
	defer cancel()
	return c.backend.AddLearner(actx, consensus.Member{
		ID: consensus.ID(rec.RaftID), Name: string(rec.Name), Address: rec.Address, StoreID: string(rec.StoreID), Role: consensus.Learner,
	})
}

// AddController admits a controller as a learner and returns its record and all records. Asking again is
// harmless. It is promoted by the leader's loop when it has caught up.
func (c *Controller) AddController(ctx context.Context, name cluster.ControllerName, address string, store cluster.StoreID, requestID string) (cluster.Revision, cluster.Controller, []cluster.Controller, error) {
	if err := c.lock(ctx); err != nil {
		return 0, cluster.Controller{}, nil, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return 0, cluster.Controller{}, nil, err
	}
	if _, err := c.converge(ctx, c.readWorld()); err != nil {
		return 0, cluster.Controller{}, nil, err
	}
	// The record first: it assigns the raft id, which is never reused.
	if _, err := c.put(ctx, cluster.Controller{Name: name, Address: address, StoreID: store, Learner: true}, requestID); err != nil {
		return 0, cluster.Controller{}, nil, err
	}
	w := c.readWorld()
	i := slices.IndexFunc(w.controllers, func(k cluster.Controller) bool { return k.Name == name })
	if i < 0 {
		return 0, cluster.Controller{}, nil, cluster.NotFound("controller %s was removed meanwhile", name)
	}
	rec := w.controllers[i]
	if _, member := memberByID(c.backend.Status(), consensus.ID(rec.RaftID)); !member {
		if err := c.addLearner(ctx, rec); err != nil {
			return 0, cluster.Controller{}, nil, c.memberError("add controller "+string(name), err)
		}
	}
	c.log.Info("controller added as a learner", zap.String("controller", string(name)), zap.Uint64("raft_id", uint64(rec.RaftID)))
	c.wake()
	return w.revision, rec, w.controllers, nil
}

// memberError maps what a membership change can end with.
func (c *Controller) memberError(what string, err error) error {
	switch {
	case errors.Is(err, consensus.ErrNotLeader), errors.Is(err, consensus.ErrStopped):
		return noLeader("%s: controller %s does not lead any more", what, c.cfg.Name)
	case errors.Is(err, consensus.ErrNotReady):
		e := cluster.Errorf(cluster.ReasonBlocked, "%s: no other voter is caught up", what)
		e.Blockers = []string{"no other voter is caught up"}
		return e
	}
	return fmt.Errorf("%s: %w", what, err)
}

// RemoveController removes a member behind the guards. When it leads, it hands leadership over and answers
// ReasonNoLeader: the new leader finishes when asked again.
func (c *Controller) RemoveController(ctx context.Context, name cluster.ControllerName, force bool) (cluster.Revision, error) {
	if err := c.lock(ctx); err != nil {
		return 0, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return 0, err
	}
	w := c.readWorld()
	_, member := memberByName(c.backend.Status(), name)
	if !member && !slices.ContainsFunc(w.controllers, func(k cluster.Controller) bool { return k.Name == name }) {
		return 0, cluster.NotFound("controller %s is no member", name)
	}
	if err := c.removeMember(ctx, w, name, force); err != nil {
		return 0, err
	}
	return c.readWorld().revision, nil
}

// removeMember removes a controller from the configuration and its record. Removing an absent one
// succeeds. The caller holds work.
func (c *Controller) removeMember(ctx context.Context, w world, name cluster.ControllerName, force bool) error {
	st := c.backend.Status()
	m, ok := memberByName(st, name)
	if !ok {
		return c.forget(ctx, name)
	}
	if m.Role == consensus.Learner {
		// Its record goes first: a recorded learner that is no member would be added again.
		if err := c.forget(ctx, name); err != nil {
			return err
		}
		return c.removeFromLog(ctx, m)
	}
	if err := voterGuard(st.Members, st.Self, map[consensus.ID]bool{m.ID: true}, w.settings.MinVoters, force); err != nil {
		return err
	}
	if m.ID == st.Self {
		leader, err := c.transfer(ctx, 0)
		if err != nil {
			return c.memberError(fmt.Sprintf("transfer leadership from %s before removing it", name), err)
		}
		return noLeader("leadership went from %s to %s, which finishes the removal", name, leader)
	}
	if err := c.removeFromLog(ctx, m); err != nil {
		return err
	}
	return c.forget(ctx, name)
}

func (c *Controller) removeFromLog(ctx context.Context, m consensus.MemberStatus) error {
	rctx, cancel := context.WithTimeout(ctx, c.cfg.ProposeTimeout)
	defer cancel()
	if err := c.backend.Remove(rctx, m.ID); err != nil {
		return c.memberError("remove controller "+m.Name, err)
	}
	c.log.Info("controller removed", zap.String("controller", m.Name), zap.Uint64("raft_id", uint64(m.ID)))
	return nil
}

// PromoteController makes a learner a voter, as the leader's loop does by itself once it is caught up. ReasonBlocked, with how far
// behind it is, when it is not.
func (c *Controller) PromoteController(ctx context.Context, name cluster.ControllerName) (rev cluster.Revision, already bool, err error) {
	if err := c.lock(ctx); err != nil {
		return 0, false, err
	}
	defer c.unlock()
	if _, err := c.Confirm(ctx); err != nil {
		return 0, false, err
	}
	m, ok := memberByName(c.backend.Status(), name)
	switch {
	case !ok:
		return 0, false, cluster.NotFound("controller %s is no member", name)
	case m.Role == consensus.Voter:
		return c.readWorld().revision, true, nil
	}
	if err := c.promote(ctx, m); errors.Is(err, consensus.ErrNotReady) {
		e := cluster.Errorf(cluster.ReasonBlocked, "learner %s is not caught up: it is %d entries behind%s; it becomes a voter by itself when it is",
			name, m.Lag, map[bool]string{true: "", false: " and was not heard of lately"}[m.Active])
		e.Blockers = []string{fmt.Sprintf("%s is %d entries behind", name, m.Lag)}
		return 0, false, e
	} else if err != nil {
		return 0, false, c.memberError("promote controller "+string(name), err)
	}
	if _, err := c.converge(ctx, c.readWorld()); err != nil {
		return 0, false, err
	}
	return c.readWorld().revision, false, nil
}

// TransferLeadership hands leadership to a voter, or to the most up-to-date other one when to is empty, and
// returns the new leader's name.
func (c *Controller) TransferLeadership(ctx context.Context, to cluster.ControllerName) (cluster.ControllerName, error) {
	if _, err := c.Confirm(ctx); err != nil {
		return "", err
	}
	var id consensus.ID
	if to != "" {
		m, ok := memberByName(c.backend.Status(), to)
		switch {
		case !ok:
			return "", cluster.NotFound("controller %s is no member", to)
		case m.Role == consensus.Learner:
			err := cluster.Errorf(cluster.ReasonBlocked, "controller %s is a learner; it can lead once it is promoted", to)
			err.Blockers = []string{string(to) + " is a learner"}
			return "", err
		}
		id = m.ID
	}
	leader, err := c.transfer(ctx, id)
	if err != nil {
		return "", c.memberError("transfer leadership", err)
	}
	return leader, nil
}

func (c *Controller) transfer(ctx context.Context, id consensus.ID) (cluster.ControllerName, error) {
	st := c.backend.Status()
	if id == st.Self {
		return c.cfg.Name, nil
	}
	if id == 0 && otherVoters(st) == 0 {
		return "", consensus.ErrNotReady
	}
	tctx, cancel := context.WithTimeout(ctx, c.cfg.ProposeTimeout)
	defer cancel()
	if err := c.backend.TransferLeadership(tctx, id); err != nil {
		return "", err
	}
	st = c.backend.Status()
	m, _ := memberByID(st, st.Leader)
	c.log.Info("leadership transferred", zap.String("leader", m.Name))
	return cluster.ControllerName(m.Name), nil
}

// otherVoters counts the voters other than this one.
func otherVoters(st consensus.Status) int {
	n := 0
	for _, m := range st.Members {
		if m.Role == consensus.Voter && m.ID != st.Self {
			n++
		}
	}
	return n
}
