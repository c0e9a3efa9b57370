package nodeagent

import (
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// FuzzCachedView: whatever a database holds in place of the cached view, it is folded or refused.
func FuzzCachedView(f *testing.F) {
	f.Add([]byte(`{"Nodes":[{"ID":"a"}],"Topics":[{"ID":1,"Name":"t"}],"Assignments":[{"Partition":{"Topic":1,"Index":0},"Owner":"a"}]}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`[`))
	db, err := OpenDB(DBOptions{Dir: "data", NodeID: "a", FS: vfs.NewMem()})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = db.Close() })
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := db.pebble.Set([]byte(cacheKey), text, pebble.NoSync); err != nil {
			t.Fatal(err)
		}
		changes, err := db.LoadView()
		if err != nil {
			return
		}
		v := NewView()
		v.Fold(true, 1, changes)
		if err := db.SaveView(v, "a"); err != nil {
			t.Fatalf("what was loaded can't be saved: %v", err)
		}
		if _, err := db.LoadView(); err != nil {
			t.Fatalf("what was saved can't be loaded: %v", err)
		}
	})
}

// FuzzWatch: in whatever order events come, the view goes forward only, and a snapshot is folded as a whole.
func FuzzWatch(f *testing.F) {
	f.Add([]byte{1, 5, 3, 5, 0, 6, 8, 7})
	f.Add([]byte{3, 5, 2, 5})
	f.Fuzz(func(t *testing.T, script []byte) {
		var d watchDecoder
		v := NewView()
		for len(script) >= 2 {
			kind, rev := script[0], cluster.Revision(binary.BigEndian.Uint16([]byte{0, script[1]}))
			script = script[2:]
			e := watchEvent{revision: rev, changes: []cluster.Change{{Node: &cluster.Node{ID: "n", Incarnation: cluster.Incarnation(rev)}}}}
			switch kind % 5 {
			case 0:
				e.delta = true
			case 1:
				e.snapshot, e.first = true, true
			case 2:
				e.snapshot, e.last = true, true
			case 3:
				e.snapshot, e.first, e.last = true, true, true
			}
			before := v.Revision
			fold, err := d.next(e)
			if err != nil {
				d.resync()
				continue
			}
			if fold == nil {
				continue
			}
			v.Fold(fold.reset, fold.revision, fold.changes)
			if v.Revision < before {
				t.Fatalf("the view went from revision %d to %d", before, v.Revision)
			}
		}
	})
}
