//go:build faults

package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
)

// Enabled says whether this binary has fault points.
const Enabled = true

// Arm is a fault to come.
type Arm struct {
	// Point is a name of Points.
	Point string `json:"point"`
	// Action is "kill" (record, then SIGKILL the own process), "block" (wait until disarmed) or
	// "error" (Hit returns an error).
	Action string `json:"action"`
	// TopicID, when not zero, restricts the fault to one topic; Index, when set as well, to one partition.
	TopicID uint64  `json:"topic_id,omitempty"`
	Index   *uint32 `json:"index,omitempty"`
	// Times bounds how often it strikes; zero is once.
	Times int `json:"times,omitempty"`
	// Record is a file that the event is written to, synced, before the action.
	Record string `json:"record,omitempty"`

	hits    int
	release chan struct{}
}

var armed struct {
	sync.Mutex
	list []*Arm
	hits map[string]int
}

// EnvArm names the environment variable with a JSON list of Arm to start with.
const EnvArm = "NARADPLANE_FAULTS"

func init() {
	armed.hits = map[string]int{}
	if s := os.Getenv(EnvArm); s != "" {
		var list []*Arm
		if err := json.Unmarshal([]byte(s), &list); err != nil {
			panic(fmt.Sprintf("%s: %v", EnvArm, err))
		}
		for _, a := range list {
			if err := add(a); err != nil {
				panic(fmt.Sprintf("%s: %v", EnvArm, err))
			}
		}
	}
}

func add(a *Arm) error {
	if !slices.Contains(Points(), a.Point) {
		return fmt.Errorf("unknown point %q", a.Point)
	}
	if !slices.Contains([]string{"kill", "block", "error"}, a.Action) {
		return fmt.Errorf("unknown action %q", a.Action)
	}
	if a.Times == 0 {
		a.Times = 1
	}
	a.release = make(chan struct{})
	armed.Lock()
	defer armed.Unlock()
	armed.list = append(armed.list, a)
	return nil
}

// ErrInjected is what an "error" fault returns.
var ErrInjected = errors.New("injected fault")

// Hit strikes when a fault is armed for e.
func Hit(e Event) error {
	armed.Lock()
	armed.hits[e.Point]++
	var a *Arm
	for _, c := range armed.list {
		if c.Point == e.Point && c.hits < c.Times && (c.TopicID == 0 || c.TopicID == e.TopicID) &&
			(c.Index == nil || *c.Index == e.Index) {
			a = c
			a.hits++
			break
		}
	}
	armed.Unlock()
	if a == nil {
		return nil
	}
	if a.Record != "" {
		if err := record(a.Record, e); err != nil {
			panic(fmt.Sprintf("record fault: %v", err))
		}
	}
	switch a.Action {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "block":
		<-a.release
		return nil
	default:
		return fmt.Errorf("%s: %w", e.Point, ErrInjected)
	}
}

func record(path string, e Event) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(b, '\n')); err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(f.Sync(), f.Close())
}

// setWallStep makes the wall clock differ from the machine's; nil in binaries whose clock can't.
var setWallStep func(seconds int64)

// Handler serves /debug/faults: GET lists hits by point, POST arms one Arm, DELETE disarms everything
// and releases what is blocked. PUT sets the wall clock, {"wall_step_seconds": N}, where it can be set.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet:
			armed.Lock()
			defer armed.Unlock()
			_ = json.NewEncoder(w).Encode(armed.hits)
		case http.MethodPost:
			a := &Arm{}
			if err := json.NewDecoder(r.Body).Decode(a); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if err := add(a); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
			}
		case http.MethodPut:
			var c struct {
				Seconds int64 `json:"wall_step_seconds"`
			}
			if err := json.NewDecoder(r.Body).Decode(&c); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if setWallStep == nil {
				http.Error(w, "the clock of this binary can't be set; build it with test/chaos/clock.sh", http.StatusNotImplemented)
				return
			}
			setWallStep(c.Seconds)
		case http.MethodDelete:
			armed.Lock()
			defer armed.Unlock()
			for _, a := range armed.list {
				close(a.release)
			}
			armed.list = nil
		default:
			http.Error(w, "GET, POST, PUT or DELETE", http.StatusMethodNotAllowed)
		}
	})
}
