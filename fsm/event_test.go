package fsm

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	storagev1 "github.com/naradctl/naradctl-plane/proto/naradplane/storage/v1"
)

// TestEventsAreBounded: the oldest goes when one more comes than are kept, in memory as in the database, and ids go on
// after a restart.
func TestEventsAreBounded(t *testing.T) {
	fs := vfs.NewMem()
	m := openTest(t, fs)
	const more = 25
	var entries []Entry
	for i := range EventLimit + more {
		set := cluster.DefaultSettings()
		set.MaxInFlightMoves = uint32(i%9000 + 1)
		b := mustEncode(t, &storagev1.Command{NowUnixNano: int64(i + 1), Actor: ActorRecord(actorNamed("alice")),
			Command: &storagev1.Command_SetSettings{SetSettings: &storagev1.SetSettings{Settings: SettingsRecord(set)}}})
		entries = append(entries, Entry{Index: uint64(i + 1), Command: b})
	}
	if _, err := m.Apply(entries); err != nil {
		t.Fatal(err)
	}
	read := func(m *Machine, after uint64, limit int) (list []cluster.Event, oldest, newest uint64) {
		m.Read(func(r Reader) { list, oldest, newest = r.Events(after, limit, nil) })
		return list, oldest, newest
	}
	all, oldest, newest := read(m, 0, 0)
	// The default is the first value of one of them: it changed nothing.
	if len(all) != EventLimit || newest-oldest+1 != EventLimit || newest < EventLimit+more-2 {
		t.Fatalf("%d are kept, %d to %d", len(all), oldest, newest)
	}
	for i, e := range all {
		if e.ID != oldest+uint64(i) {
			t.Fatalf("event %d follows %d", e.ID, oldest+uint64(i)-1)
		}
	}
	if part, _, _ := read(m, newest-10, 3); len(part) != 3 || part[0].ID != newest-9 {
		t.Errorf("3 after %d: %v", newest-10, part)
	}
	if none, _, _ := read(m, newest, 3); len(none) != 0 {
		t.Errorf("after the newest: %v", none)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	again := openTest(t, fs)
	reread, _, _ := read(again, 0, 0)
	if d := cmp.Diff(all, reread); d != "" {
		t.Fatalf("after a restart (-before +after):\n%s", d)
	}
	cmd := registerCmd("agent-1", "s1", 1)
	cmd.Actor = ActorRecord(actorNamed("agent"))
	do(t, again, cmd)
	last, _, _ := read(again, newest, 0)
	if len(last) != 1 || last[0].ID != newest+1 || last[0].Kind != cluster.EventNodeJoined || fmt.Sprint(last[0].Nodes) != "[agent-1]" {
		t.Errorf("after a restart: %+v", last)
	}
}
