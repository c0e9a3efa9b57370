package nodeagent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// An agent whose configured controllers are all gone goes on with those that the cluster told of, and a restart
// does not forget them.
func TestControllersThatTheClusterNamedAreFollowed(t *testing.T) {
	c := startController(t)
	old := startNetsplit(t, c.address)
	o := agentOptions{id: "n1", dir: t.TempDir(), controllers: []string{old.address}}
	a := startAgent(t, o)
	a.waitReady(t)
	eventually(t, "the controller's address is known", func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if got := a.mu.view.ControllerAddresses(); !slices.Equal(got, []string{c.address}) {
			return fmt.Errorf("controllers %v", got)
		}
		return nil
	})
	old.drop(true)
	inc, _ := a.Incarnation()
	gone := time.Now()
	eventually(t, "a lease without the configured controller", func() error {
		if now, ok := a.Incarnation(); !ok || now != inc {
			t.Fatalf("incarnation %d, registered %t; it was %d", now, ok, inc)
		}
		if !a.LeaseValid() || time.Since(gone) < 2*testLease {
			return errors.New("no lease, or none that was renewed since")
		}
		return nil
	})
	a.stop()
	a = startAgent(t, o)
	a.waitReady(t)
}

// Learned addresses come besides the configured ones, and go when the cluster does not name them any more; who
// answered last stays the present one.
func TestLearnedControllers(t *testing.T) {
	c := NewClient(ClientOptions{Controllers: []string{"a:1"}})
	t.Cleanup(c.Close)
	addresses := func() (out []string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, e := range c.mu.endpoints {
			out = append(out, e.address)
		}
		return out
	}
	check := func(learn, want []string, current string) {
		t.Helper()
		c.Learn(learn)
		if got := addresses(); !slices.Equal(got, want) || c.current().address != current {
			t.Fatalf("after %v: %v at %s, want %v at %s", learn, got, c.current().address, want, current)
		}
	}
	check([]string{"b:1", "c:1", "a:1"}, []string{"a:1", "b:1", "c:1"}, "a:1")
	c.pass(c.current())
	c.pass(c.current())
	check([]string{"c:1", "d:1"}, []string{"a:1", "c:1", "d:1"}, "c:1")
	check(nil, []string{"a:1"}, "a:1")
	if n := c.attempts(); n != 3 {
		t.Errorf("%d attempts at one address", n)
	}
}

func TestViewFoldsControllers(t *testing.T) {
	v := NewView()
	ctl := func(name, address string) cluster.Change {
		return cluster.Change{Controller: &cluster.Controller{Name: cluster.ControllerName(name), Address: address}}
	}
	v.Fold(true, 5, []cluster.Change{ctl("c2", "z:1"), ctl("c1", "a:1")})
	touched := v.Fold(false, 6, []cluster.Change{{ControllerRemoved: "c1"}, ctl("c3", "b:1")})
	if got := v.ControllerAddresses(); !touched.Controllers || !slices.Equal(got, []string{"b:1", "z:1"}) {
		t.Fatalf("touched %+v, controllers %v", touched, got)
	}
}
