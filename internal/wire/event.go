package wire

import (
	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// ActorToProto returns nil for nobody.
func ActorToProto(a cluster.Actor) *planev1.Actor {
	if a.Kind == 0 {
		return nil
	}
	return &planev1.Actor{Kind: planev1.ActorKind(a.Kind), Name: a.Name, Verified: a.Verified, Address: a.Address}
}

// ActorFromProto returns the zero value for nil.
func ActorFromProto(a *planev1.Actor) cluster.Actor {
	return cluster.Actor{Kind: cluster.ActorKind(a.GetKind()), Name: a.GetName(), Verified: a.GetVerified(), Address: a.GetAddress()}
}

// EventToProto converts a line of the audit. The numbers of kinds are the same on both sides.
func EventToProto(e cluster.Event) *planev1.Event {
	out := &planev1.Event{
		Id: e.ID, Revision: uint64(e.Revision), At: TimeToProto(e.At), Actor: ActorToProto(e.Actor), Kind: planev1.EventKind(e.Kind),
		Subject: e.Subject, Reason: e.Reason, Result: e.Result,
	}
	for _, n := range e.Nodes {
		out.Nodes = append(out.Nodes, string(n))
	}
	return out
}
