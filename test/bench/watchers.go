package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"
)

// watchers are client processes, each with a share of the streams. A process prints "open" when all of its streams are, and
// then, for each revision that all of them have, "<revision> <Unix nanoseconds of the last>". It ends with its input.
type watchers struct {
	cmds   []*exec.Cmd
	inputs []io.Closer
	lines  chan arrival
	wg     sync.WaitGroup
}

// arrival is a revision at all streams of one process; revision zero says that they are open.
type arrival struct {
	revision uint64
	at       time.Time
	err      error
}

// startWatchers runs processes for n streams and waits until all are open. Each is given args, and its number of streams.
func startWatchers(ctx context.Context, n int, binary string, args ...string) (*watchers, error) {
	w := &watchers{lines: make(chan arrival, 1024)}
	for left := n; left > 0; left -= watchesPerProcess {
		if err := w.start(ctx, binary, append(args, strconv.Itoa(min(left, watchesPerProcess)))); err != nil {
			w.stop()
			return nil, err
		}
	}
	for range w.cmds {
		if a, err := w.next(ctx); err != nil || a.revision != 0 {
			w.stop()
			return nil, fmt.Errorf("open streams: %w", errors.Join(err, a.err))
		}
	}
	return w, nil
}

func (w *watchers) start(ctx context.Context, binary string, args []string) error {
	cmd := exec.CommandContext(ctx, binary, args...)
	var failure strings.Builder
	cmd.Stderr = &failure
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	w.cmds, w.inputs = append(w.cmds, cmd), append(w.inputs, in)
	w.wg.Go(func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			w.lines <- parseArrival(s.Text())
		}
		if err := cmd.Wait(); err != nil {
			w.lines <- arrival{err: fmt.Errorf("%s: %w: %s", binary, err, failure.String())}
		}
	})
	return nil
}

func parseArrival(line string) arrival {
	if line == "open" {
		return arrival{}
	}
	var a arrival
	var nanos int64
	if _, err := fmt.Sscan(line, &a.revision, &nanos); err != nil {
		a.err = fmt.Errorf("a client says %q", line)
	}
	a.at = time.Unix(0, nanos)
	return a
}

func (w *watchers) next(ctx context.Context) (arrival, error) {
	t := time.NewTimer(3 * time.Minute)
	defer t.Stop()
	select {
	case a := <-w.lines:
		return a, a.err
	case <-ctx.Done():
		return arrival{}, ctx.Err()
	case <-t.C:
		return arrival{}, errors.New("the watchers say nothing")
	}
}

// follow commits again and again, and returns how long each took from the request to the last watcher of all.
func (w *watchers) follow(ctx context.Context, commit func(i int) (uint64, error)) ([]time.Duration, error) {
	var out []time.Duration
	for i := range watchCommits {
		began := time.Now()
		revision, err := commit(i)
		if err != nil {
			return nil, err
		}
		var last time.Duration
		for left := len(w.cmds); left > 0; {
			a, err := w.next(ctx)
			if err != nil {
				return nil, err
			}
			if a.revision != revision {
				continue
			}
			left--
			last = max(last, a.at.Sub(began))
		}
		out = append(out, last)
		pause(ctx, 100*time.Millisecond)
	}
	return out, nil
}

// stop ends the processes.
func (w *watchers) stop() {
	for _, in := range w.inputs {
		_ = in.Close() // ends the process, which is what matters
	}
	done := make(chan struct{})
	go func() {
		w.wg.Wait()
		close(done)
	}()
	for {
		select {
		case <-w.lines:
		case <-done:
			return
		}
	}
}
