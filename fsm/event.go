package fsm

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// EventLimit is how many events are kept. All replicas must agree on it.
const EventLimit = 10_000

// event notes one for the command under way. It is written when the command has changed something.
//
// A command without an actor leaves none: versions before the audit proposed it, and replicas that applied it
// then must not differ from those that apply it now.
func (st *state) event(kind cluster.EventKind, subject, reason, result string, nodes ...cluster.NodeID) {
	if st.actor.Kind == 0 {
		return
	}
	nodes = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(nodes))), func(id cluster.NodeID) bool { return id == "" })
	st.noted = append(st.noted, cluster.Event{
		Revision: st.next, At: st.now, Actor: st.actor, Kind: kind, Subject: subject, Nodes: nodes, Reason: reason, Result: result,
	})
}

// writeEvents numbers and writes what the command noted, and forgets what is beyond the limit.
func (st *state) writeEvents() {
	for _, e := range st.noted {
		e.ID = 1
		if n := len(st.events); n > 0 {
			e.ID = st.events[n-1].ID + 1
		}
		st.events = append(st.events, e)
		st.set(key64(prefixEvent, e.ID), marshal(eventRecord(e)))
	}
	for len(st.events) > EventLimit {
		st.delete(key64(prefixEvent, st.events[0].ID))
		st.events = st.events[1:]
	}
	st.noted = nil
}

// byOperator says whether an operator asked for the command under way.
func (st *state) byOperator() bool { return st.actor.Kind == cluster.ActorOperator }

// Events returns events with an id above after, oldest first, at most limit of them (zero: all), and the
// oldest and the newest id that are kept; both are zero when there is none.
func (r Reader) Events(after uint64, limit int, match func(cluster.Event) bool) (out []cluster.Event, oldest, newest uint64) {
	all := r.st.events
	if len(all) == 0 {
		return nil, 0, 0
	}
	from, _ := slices.BinarySearchFunc(all, after+1, func(e cluster.Event, id uint64) int { return cmp.Compare(e.ID, id) })
	for _, e := range all[from:] {
		if match != nil && !match(e) {
			continue
		}
		if out = append(out, e); limit > 0 && len(out) == limit {
			break
		}
	}
	return out, all[0].ID, all[len(all)-1].ID
}

func actorRecord(a cluster.Actor) *storagev1.ActorRecord {
	return &storagev1.ActorRecord{Kind: uint32(a.Kind), Name: a.Name, Verified: a.Verified, Address: a.Address}
}

// ActorRecord returns the record of a command's actor; nil for nobody.
func ActorRecord(a cluster.Actor) *storagev1.ActorRecord {
	if a.Kind == 0 {
		return nil
	}
	return actorRecord(a)
}

func actor(r *storagev1.ActorRecord) cluster.Actor {
	return cluster.Actor{Kind: cluster.ActorKind(r.GetKind()), Name: r.GetName(), Verified: r.GetVerified(), Address: r.GetAddress()}
}

func eventRecord(e cluster.Event) *storagev1.EventRecord {
	r := &storagev1.EventRecord{
		Revision: uint64(e.Revision), At: nanos(e.At), Actor: actorRecord(e.Actor), Kind: uint32(e.Kind),
		Subject: e.Subject, Reason: e.Reason, Result: e.Result,
	}
	for _, n := range e.Nodes {
		r.Nodes = append(r.Nodes, string(n))
	}
	return r
}

func event(key []byte, r *storagev1.EventRecord) cluster.Event {
	e := cluster.Event{
		ID: binary.BigEndian.Uint64(key[1:]), Revision: cluster.Revision(r.GetRevision()), At: fromNanos(r.GetAt()),
		Actor: actor(r.GetActor()), Kind: cluster.EventKind(r.GetKind()), Subject: r.GetSubject(), Reason: r.GetReason(), Result: r.GetResult(),
	}
	for _, n := range r.GetNodes() {
		e.Nodes = append(e.Nodes, cluster.NodeID(n))
	}
	return e
}

// settingsChanges lists what differs, as "key: old → new", in the order of the record's fields, so that a new
// setting needs no code here.
func settingsChanges(before, after cluster.Settings) string {
	a, b := SettingsRecord(before).ProtoReflect(), SettingsRecord(after).ProtoReflect()
	fields := a.Descriptor().Fields()
	var out []string
	for i := range fields.Len() {
		f := fields.Get(i)
		if old, now := a.Get(f), b.Get(f); !old.Equal(now) {
			out = append(out, fmt.Sprintf("%s: %s → %s", f.Name(), settingText(f, old), settingText(f, now)))
		}
	}
	return strings.Join(out, ", ")
}

// settingText is one value for people: signed numbers are nanoseconds.
func settingText(f protoreflect.FieldDescriptor, v protoreflect.Value) string {
	if f.Kind() == protoreflect.Int64Kind {
		return nanosText(v.Int())
	}
	return fmt.Sprint(v.Interface())
}

func nanosText(n int64) string { return time.Duration(n).String() }
