package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Kind is a kind of fault, or of operator's action.
type Kind string

// The kinds. Those of links name two ends, or one and all others.
const (
	Kill      Kind = "kill"       // SIGKILL; started again after a while
	KillAll   Kind = "kill-all"   // all controllers, or all agents, at once
	Pause     Kind = "pause"      // SIGSTOP, then SIGCONT
	Point     Kind = "point"      // dies at a named point of a move
	Split     Kind = "split"      // one host can't send to another
	Isolate   Kind = "isolate"    // a host and all others can't reach each other
	Deaf      Kind = "deaf"       // nothing reaches a host; what it sends arrives
	Mute      Kind = "mute"       // nothing that a host sends arrives; it hears the others
	Loss      Kind = "loss"       // packets from and to a host get lost and repeated
	Delay     Kind = "delay"      // packets from and to a host are late and out of order
	Throttle  Kind = "throttle"   // a host's link is slow
	DiskFull  Kind = "disk-full"  // no space is left
	DiskSlow  Kind = "disk-slow"  // syncs take their time
	SyncFails Kind = "sync-fails" // syncs end with an error
	Clock     Kind = "clock"      // the wall clock jumps
	Moves     Kind = "moves"      // an operator moves partitions by hand
	Cancel    Kind = "cancel"     // an operator cancels what moves
	Drain     Kind = "drain"      // an operator decommissions a node, and adds another one
	Undrain   Kind = "undrain"    // an operator decommissions a node and changes his mind
	Settings  Kind = "settings"   // an operator changes settings
	Topics    Kind = "topics"     // an operator makes a topic, writes to it and deletes it
	Transfer  Kind = "transfer"   // an operator moves leadership
	Replace   Kind = "replace"    // an operator adds a controller and removes another
)

// kinds lists each kind with how often it comes, relative to the others.
var kinds = []struct {
	kind   Kind
	weight int
}{
	{Kill, 14}, {KillAll, 1}, {Pause, 8}, {Point, 8}, {Split, 6}, {Isolate, 5}, {Deaf, 3}, {Mute, 3}, {Loss, 5}, {Delay, 5},
	{Throttle, 4}, {DiskFull, 3}, {DiskSlow, 5}, {SyncFails, 3}, {Clock, 4},
	{Moves, 14}, {Cancel, 5}, {Drain, 3}, {Undrain, 3}, {Settings, 5}, {Topics, 3}, {Transfer, 3}, {Replace, 2},
}

// Kinds returns every kind.
func Kinds() []Kind {
	var out []Kind
	for _, k := range kinds {
		out = append(out, k.kind)
	}
	return out
}

// Step is one fault. Target, Other and Choice are numbers that the run takes modulo what there is at that moment.
type Step struct {
	At, For               time.Duration
	Kind                  Kind
	Target, Other, Choice int
	// Amount is from 0 to 1: how bad it is.
	Amount float64
}

func (s Step) String() string {
	return fmt.Sprintf("%8.1fs %-10s for %4.1fs target=%d other=%d choice=%d amount=%.2f", s.At.Seconds(), s.Kind, s.For.Seconds(), s.Target, s.Other, s.Choice, s.Amount)
}

// Plan returns the steps of a run, ordered by when they begin. Each ends within the duration. Only kinds that pass can.
func Plan(seed uint64, d time.Duration, can func(Kind) bool) []Step {
	rng := rand.New(rand.NewPCG(seed, 0x6368616f73))
	total := 0
	for _, k := range kinds {
		if can(k.kind) {
			total += k.weight
		}
	}
	var steps []Step
	if total == 0 {
		return nil
	}
	for at := time.Second; at < d; at += time.Duration(200+rng.IntN(2600)) * time.Millisecond {
		s := Step{At: at, Target: rng.IntN(1 << 20), Other: rng.IntN(1 << 20), Choice: rng.IntN(1 << 20), Amount: rng.Float64()}
		// Most faults are short. Some last longer than it takes to declare a node dead and to promote its copies.
		s.For = time.Duration(200+rng.IntN(3800)) * time.Millisecond
		if rng.IntN(5) == 0 {
			s.For += time.Duration(rng.IntN(12000)) * time.Millisecond
		}
		s.For = min(s.For, d-at)
		n := rng.IntN(total)
		for _, k := range kinds {
			if !can(k.kind) {
				continue
			}
			if n -= k.weight; n < 0 {
				s.Kind = k.kind
				break
			}
		}
		steps = append(steps, s)
	}
	return steps
}

// Only permits the named kinds; all when none is named.
func Only(names []string) (func(Kind) bool, error) {
	for _, n := range names {
		if !slices.Contains(Kinds(), Kind(n)) {
			return nil, fmt.Errorf("%q is no kind of fault; there are %v", n, Kinds())
		}
	}
	return func(k Kind) bool { return len(names) == 0 || slices.Contains(names, string(k)) }, nil
}
