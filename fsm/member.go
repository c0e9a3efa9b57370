package fsm

import (
	"fmt"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// refused is the result of a command that changed nothing because of err.
func refused(err *cluster.Error) Result { return Result{Err: err} }

func asRefusal(err error) Result {
	if e := cluster.AsError(err); e != nil {
		return refused(e)
	}
	return refused(cluster.Errorf(cluster.ReasonBug, "%v", err))
}

func (st *state) setSettings(c *storagev1.SetSettings) Result {
	s := settings(c.GetSettings())
	if err := s.Validate(); err != nil {
		return asRefusal(err)
	}
	if s == st.settings {
		return Result{}
	}
	st.event(cluster.EventSettingsChanged, "", "", settingsChanges(st.settings, s))
	st.settings = s
	st.set(keySettings, marshal(SettingsRecord(s)))
	st.change(cluster.Change{Settings: &s})
	return Result{}
}

// controllerPut records a consensus member. A raft id of zero gets a new one, or the recorded one when
// the same store asks again.
func (st *state) controllerPut(c cluster.Controller) Result {
	if err := cluster.ValidateControllerName(c.Name); err != nil {
		return asRefusal(err)
	}
	old, known := st.controllers[c.Name]
	if known && old.StoreID != c.StoreID {
		return refused(cluster.Errorf(cluster.ReasonForeignStore,
			"controller %s is known with data directory %s, not %s: its disk was wiped or is another's; "+
				"run \"naradctl-plane cluster controllers remove %s\", then start it with --join",
			c.Name, old.StoreID, c.StoreID, c.Name))
	}
	if c.RaftID == 0 {
		if known {
			return Result{Value: uint64(old.RaftID)}
		}
		c.RaftID = cluster.RaftID(st.nextRaftID)
	}
	if known && old == c {
		return Result{Value: uint64(c.RaftID)}
	}
	if uint64(c.RaftID) >= st.nextRaftID {
		st.nextRaftID = uint64(c.RaftID) + 1
		st.set(keyNextRaftID, value64(st.nextRaftID))
	}
	st.controllers[c.Name] = c
	st.set(keyString(prefixController, string(c.Name)), marshal(controllerRecord(c)))
	st.change(cluster.Change{Controller: &c})
	result := fmt.Sprintf("at %s, raft id %d", c.Address, c.RaftID)
	switch {
	case !known:
		st.event(cluster.EventControllerAdded, string(c.Name), "", result)
	case old.Learner && !c.Learner:
		st.event(cluster.EventControllerPromoted, string(c.Name), "", result)
	default:
		st.event(cluster.EventControllerChanged, string(c.Name), "", result)
	}
	return Result{Value: uint64(c.RaftID)}
}

func (st *state) removeController(c *storagev1.RemoveController) Result {
	name := cluster.ControllerName(c.GetName())
	if _, ok := st.controllers[name]; !ok {
		return Result{}
	}
	delete(st.controllers, name)
	st.delete(keyString(prefixController, string(name)))
	st.change(cluster.Change{ControllerRemoved: name})
	st.event(cluster.EventControllerRemoved, string(name), "", "")
	return Result{}
}
