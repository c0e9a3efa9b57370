// Package watchcheck holds what a watch promises as named validators, for whoever records its streams.
//
//   - ordered: revisions never go back within a stream.
//   - unique: no revision comes twice within a stream.
//   - atomic: a revision comes whole, in one message, and alike on every stream.
//   - reliable: no revision between two that came is left out.
//   - resumable: a stream that is resumed after a revision goes on with the next one.
//   - bookmarkable: what is told to be passed, by progress or a snapshot, came before it or is in it.
//
// A Log is what all streams with the same filter showed. It is safe for concurrent use; each Stream belongs to one
// goroutine. Revisions that were missed show when the streams are compared: Check does that. Call it at the end.
package watchcheck

import (
	"fmt"
	"slices"
	"sync"
)

// The names of the promises.
const (
	Ordered      = "ordered"
	Unique       = "unique"
	Atomic       = "atomic"
	Reliable     = "reliable"
	Resumable    = "resumable"
	Bookmarkable = "bookmarkable"
)

// Violation is a promise that was broken.
type Violation struct {
	Promise string
	Stream  string
	Text    string
}

// String names promise and stream.
func (v Violation) String() string {
	return fmt.Sprintf("watch is not %s: %s: %s", v.Promise, v.Stream, v.Text)
}

// Log collects streams that show the same changes. The zero value is ready.
type Log struct {
	mu struct {
		sync.Mutex
		// history has the content of every revision that a stream showed.
		history    map[uint64]string
		streams    []*Stream
		violations []Violation
	}
}

// span says that a stream showed everything above after, up to upTo.
type span struct {
	after, upTo uint64
	// begun is why the first revision above after may not be left out.
	begun string
	seen  []uint64
}

// Stream records one watcher, through all its reconnections.
type Stream struct {
	log  *Log
	name string
	// at is the position: everything up to it was shown.
	at      uint64
	partial bool
	partRev uint64
	spans   []span
}

// Stream returns the record of a new watcher.
func (l *Log) Stream(name string) *Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &Stream{log: l, name: name}
	l.mu.streams = append(l.mu.streams, s)
	return s
}

// Commit tells the content of a revision from elsewhere than a stream, such as the state machine. A revision without content
// for the watchers is not to be told.
func (l *Log) Commit(rev uint64, content string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.content("the state", rev, content)
}

// content notes or compares; the lock is held.
func (l *Log) content(stream string, rev uint64, content string) {
	if l.mu.history == nil {
		l.mu.history = map[uint64]string{}
	}
	if old, ok := l.mu.history[rev]; ok && old != content {
		l.violate(stream, Atomic, "revision %d is %q here, %q elsewhere", rev, content, old)
		return
	}
	l.mu.history[rev] = content
}

func (l *Log) violate(stream, promise, format string, args ...any) {
	l.mu.violations = append(l.mu.violations, Violation{promise, stream, fmt.Sprintf(format, args...)})
}

// Open begins a connection that goes on after a revision; zero asks for a snapshot.
func (s *Stream) Open(after uint64) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.partial = false
	if after == 0 {
		return
	}
	if after != s.at {
		s.log.violate(s.name, Resumable, "resumed after %d, shown up to %d", after, s.at)
	}
	s.at = after
	s.begin(Resumable)
}

// begin begins a span at the position.
func (s *Stream) begin(why string) {
	if n := len(s.spans); n > 0 && s.spans[n-1].upTo == s.at && why == Resumable {
		return // the last one goes on
	}
	s.spans = append(s.spans, span{after: s.at, upTo: s.at, begun: why})
}

// Snapshot takes one part of a snapshot of a revision.
func (s *Stream) Snapshot(rev uint64, first, last bool) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	switch {
	case first == s.partial:
		s.log.violate(s.name, Atomic, "snapshot of revision %d: a part says first=%t", rev, first)
	case s.partial && rev != s.partRev:
		s.log.violate(s.name, Atomic, "a part of revision %d in a snapshot of revision %d", rev, s.partRev)
	case rev < s.at:
		s.log.violate(s.name, Ordered, "a snapshot of revision %d after revision %d", rev, s.at)
	}
	s.partial, s.partRev = !last, rev
	if last {
		s.at = rev
		s.begin(Bookmarkable)
	}
}

// Delta takes a revision. content is what it changes, in a form that is alike on every stream.
func (s *Stream) Delta(rev uint64, content string) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.content(s.name, rev, content)
	switch {
	case s.partial:
		s.log.violate(s.name, Atomic, "revision %d inside a snapshot of revision %d", rev, s.partRev)
		return
	case len(s.spans) == 0:
		s.log.violate(s.name, Resumable, "revision %d before a snapshot", rev)
		return
	case rev == s.at && slices.Contains(s.spans[len(s.spans)-1].seen, rev):
		s.log.violate(s.name, Unique, "revision %d came twice", rev)
		return
	case rev <= s.at:
		s.log.violate(s.name, Ordered, "revision %d after revision %d", rev, s.at)
		return
	}
	x := &s.spans[len(s.spans)-1]
	x.seen, x.upTo, s.at = append(x.seen, rev), rev, rev
}

// Progress takes a bookmark: everything up to rev was shown.
func (s *Stream) Progress(rev uint64) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	switch {
	case s.partial:
		s.log.violate(s.name, Atomic, "progress to revision %d inside a snapshot of revision %d", rev, s.partRev)
		return
	case len(s.spans) == 0:
		s.log.violate(s.name, Resumable, "progress to revision %d before a snapshot", rev)
		return
	case rev < s.at:
		s.log.violate(s.name, Ordered, "progress to revision %d after revision %d", rev, s.at)
		return
	}
	s.spans[len(s.spans)-1].upTo, s.at = rev, rev
}

// Check compares the streams with what all of them showed, and returns every violation.
func (l *Log) Check() []Violation {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Clone(l.mu.violations)
	all := make([]uint64, 0, len(l.mu.history))
	for rev := range l.mu.history {
		all = append(all, rev)
	}
	slices.Sort(all)
	for _, s := range l.mu.streams {
		for _, x := range s.spans {
			out = append(out, s.missed(x, all)...)
		}
	}
	return out
}

// missed lists the revisions of a span that the stream left out.
func (s *Stream) missed(x span, all []uint64) (out []Violation) {
	from, _ := slices.BinarySearch(all, x.after+1)
	for _, rev := range all[from:] {
		if rev > x.upTo {
			break
		}
		if slices.Contains(x.seen, rev) {
			continue
		}
		promise := Reliable
		switch {
		case len(x.seen) == 0 || rev > x.seen[len(x.seen)-1]:
			promise = Bookmarkable
		case rev < x.seen[0]:
			promise = x.begun
		}
		out = append(out, Violation{promise, s.name, fmt.Sprintf("revision %d is left out between %d and %d", rev, x.after, x.upTo)})
	}
	return out
}
