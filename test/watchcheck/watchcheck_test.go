package watchcheck

import "testing"

// TestEachPromiseCanBeBroken: streams that break one promise each, and the name that comes out; and streams that break none.
func TestEachPromiseCanBeBroken(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		run        func(s *Stream)
	}{
		{"a snapshot, revisions, a bookmark", "", func(s *Stream) { s.Delta(2, "b"); s.Delta(4, "d"); s.Progress(5) }},
		{"resumed after a bookmark", "", func(s *Stream) { s.Delta(2, "b"); s.Progress(3); s.Open(3); s.Delta(4, "d") }},
		{"fallen behind", "", func(s *Stream) { s.Delta(2, "b"); s.Open(0); s.Snapshot(7, true, false); s.Snapshot(7, false, true) }},
		{"back in time", Ordered, func(s *Stream) { s.Delta(2, "b"); s.Delta(4, "d"); s.Delta(2, "b") }},
		{"an older snapshot", Ordered, func(s *Stream) { s.Delta(2, "b"); s.Delta(4, "d"); s.Open(0); s.Snapshot(2, true, true) }},
		{"twice", Unique, func(s *Stream) { s.Delta(2, "b"); s.Delta(2, "b") }},
		{"half a revision", Atomic, func(s *Stream) { s.Delta(2, "half of b") }},
		{"a revision inside a snapshot", Atomic, func(s *Stream) { s.Open(0); s.Snapshot(7, true, false); s.Delta(8, "h") }},
		{"a hole", Reliable, func(s *Stream) { s.Delta(2, "b"); s.Delta(6, "f") }},
		{"a hole after a resumption", Resumable, func(s *Stream) {
			s.Delta(2, "b")
			s.Open(2)
			s.spans = append(s.spans, span{after: 2, upTo: 2, begun: Resumable})
			s.Delta(6, "f")
		}},
		{"resumed elsewhere", Resumable, func(s *Stream) { s.Delta(2, "b"); s.Open(4) }},
		{"passed and not shown", Bookmarkable, func(s *Stream) { s.Delta(2, "b"); s.Progress(5) }},
	} {
		var l Log
		for rev, content := range map[uint64]string{2: "b", 4: "d", 6: "f"} {
			l.Commit(rev, content)
		}
		s := l.Stream("s")
		s.Open(0)
		s.Snapshot(1, true, true)
		tt.run(s)
		got := ""
		if vs := l.Check(); len(vs) > 0 {
			got = vs[0].Promise
		}
		if got != tt.want {
			t.Errorf("%s: %q is said to be broken, want %q: %v", tt.name, got, tt.want, l.Check())
		}
	}
}
