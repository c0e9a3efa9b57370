package sim

import (
	"fmt"
	"iter"
	"runtime/debug"
	"time"
)

// life is one run of a host's process. When it ends, so does every proc of it, wherever that waits.
type life struct {
	w     *World
	name  string
	alive bool
	procs map[*proc]uint64
	seq   uint64
}

func (w *World) newLife(name string) *life {
	return &life{w: w, name: name, alive: true, procs: map[*proc]uint64{}}
}

// end kills the procs in the order in which they were begun.
func (l *life) end() {
	l.alive = false
	for len(l.procs) > 0 {
		var first *proc
		for p, n := range l.procs {
			if first == nil || n < l.procs[first] {
				first = p
			}
		}
		first.kill()
	}
}

// proc is straight-line code that waits on virtual time: a coroutine that runs only while an event resumes it,
// so that two never run at once.
type proc struct {
	w    *World
	life *life
	next func() (struct{}, bool)
	stop func()
	out  func(struct{}) bool
	// wait numbers what is waited for; a wake-up for an earlier number does nothing.
	wait    uint64
	running bool
	done    bool
	dead    bool
}

type killed struct{}

// spawn begins a proc at this instant of virtual time, after the event in progress.
func (l *life) spawn(fn func(p *proc)) *proc {
	p := &proc{w: l.w, life: l}
	l.seq++
	l.procs[p] = l.seq
	p.next, p.stop = iter.Pull(func(yield func(struct{}) bool) {
		p.out = yield
		defer func() {
			p.done = true
			delete(l.procs, p)
			if r := recover(); r != nil {
				if _, ok := r.(killed); !ok {
					panic(fmt.Sprintf("%v\n%s", r, debug.Stack()))
				}
			}
		}()
		fn(p)
	})
	l.w.after(0, func() { p.resume(0) })
	return p
}

func (p *proc) resume(id uint64) {
	if p.done || p.dead || id != p.wait {
		return
	}
	p.running = true
	p.next()
	p.running = false
}

// kill ends a proc that waits. One that has not begun never will.
func (p *proc) kill() {
	delete(p.life.procs, p)
	if p.done || p.dead {
		return
	}
	p.dead = true
	p.stop()
}

func (p *proc) park() {
	if !p.out(struct{}{}) {
		panic(killed{})
	}
}

func (p *proc) sleep(d time.Duration) {
	p.wait++
	id := p.wait
	p.w.after(d, func() { p.resume(id) })
	p.park()
}

// await starts something that calls done later, and waits for it, for timeout at most.
func await[T any](p *proc, timeout time.Duration, start func(done func(T))) (res T, ok bool) {
	p.wait++
	id := p.wait
	start(func(v T) {
		if ok || p.wait != id {
			return
		}
		res, ok = v, true
		p.w.after(0, func() { p.resume(id) })
	})
	p.w.after(timeout, func() { p.resume(id) })
	p.park()
	p.wait++
	return res, ok
}
