package wire

import (
	"strings"
	"testing"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

// TestEventKindsHaveOneNumber: kinds and actors are converted by number, so each must have the same name on both sides.
func TestEventKindsHaveOneNumber(t *testing.T) {
	if got, want := len(planev1.EventKind_name)-1, len(cluster.EventKinds()); got != want {
		t.Errorf("the API has %d kinds of events, the vocabulary %d", got, want)
	}
	for _, k := range cluster.EventKinds() {
		if got, want := planev1.EventKind(k).String(), "EVENT_KIND_"+strings.ToUpper(k.String()); got != want {
			t.Errorf("kind %d is %s, want %s", k, got, want)
		}
	}
	for k := cluster.ActorOperator; k <= cluster.ActorAgent; k++ {
		if got, want := planev1.ActorKind(k).String(), "ACTOR_KIND_"+strings.ToUpper(k.String()); got != want {
			t.Errorf("actor %d is %s, want %s", k, got, want)
		}
	}
	if got, want := len(planev1.ActorKind_name)-1, int(cluster.ActorAgent); got != want {
		t.Errorf("the API has %d kinds of actors, the vocabulary %d", got, want)
	}
}
