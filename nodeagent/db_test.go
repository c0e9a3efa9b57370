package nodeagent

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

func openDB(t *testing.T, fs vfs.FS, dir string) *DB {
	t.Helper()
	db, err := OpenDB(DBOptions{Dir: dir, NodeID: "n1", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func closeDB(t *testing.T, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// Incarnations grow over restarts, and over crashes that lose everything that was not synced: otherwise an
// incarnation could name two processes.
func TestI7IncarnationIsDurable(t *testing.T) {
	fs := vfs.NewCrashableMem()
	var last cluster.Incarnation
	for round := range 4 {
		db := openDB(t, fs, "/data")
		for range 2 {
			next, err := db.NextIncarnation()
			if err != nil {
				t.Fatal(err)
			}
			if next <= last {
				t.Fatalf("round %d: incarnation %d after %d", round, next, last)
			}
			last = next
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		closeDB(t, db)
		fs = crashed
	}
}

func TestStoreIDIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	db := openDB(t, nil, dir)
	first := db.StoreID()
	closeDB(t, db)
	db = openDB(t, nil, dir)
	defer closeDB(t, db)
	if first == "" || db.StoreID() != first {
		t.Fatalf("store id %q after %q", db.StoreID(), first)
	}
	other := openDB(t, nil, t.TempDir())
	defer closeDB(t, other)
	if other.StoreID() == first {
		t.Fatal("two directories have one store id")
	}
}

// A data directory belongs to one process.
func TestC37SecondProcessOnOneDirectoryIsRefused(t *testing.T) {
	if dir := os.Getenv("NARAD_LOCK_DIR"); dir != "" {
		_, err := OpenDB(DBOptions{Dir: dir, NodeID: "n1"})
		if err == nil {
			t.Fatal("opened")
		}
		t.Fatal(err)
	}
	dir := t.TempDir()
	db := openDB(t, nil, dir)
	defer closeDB(t, db)
	_, err := OpenDB(DBOptions{Dir: dir, NodeID: "n1"})
	wantRefusal(t, err, cluster.ReasonBlocked, "another process")

	cmd := exec.Command(os.Args[0], "-test.run=^TestC37SecondProcessOnOneDirectoryIsRefused$")
	cmd.Env = append(os.Environ(), "NARAD_LOCK_DIR="+dir)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "in use by another process") || !strings.Contains(string(out), "another data_dir") {
		t.Fatalf("a second process got %v:\n%s", err, out)
	}
}

func wantRefusal(t *testing.T, err error, r cluster.Reason, text string) {
	t.Helper()
	if cluster.ReasonOf(err) != r || !strings.Contains(err.Error(), text) {
		t.Fatalf("got %v (%s), want %s with %q", err, cluster.ReasonOf(err), r, text)
	}
}

func TestDirectoryOfAnotherNodeIsRefused(t *testing.T) {
	dir := t.TempDir()
	closeDB(t, openDB(t, nil, dir))
	_, err := OpenDB(DBOptions{Dir: dir, NodeID: "n2"})
	wantRefusal(t, err, cluster.ReasonForeignStore, `belongs to node "n1"`)
	// The refusal has released the directory.
	closeDB(t, openDB(t, nil, dir))
}

func TestNewerFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	db := openDB(t, nil, dir)
	if err := db.put(formatKey, be64(FormatVersion+1)); err != nil {
		t.Fatal(err)
	}
	closeDB(t, db)
	_, err := OpenDB(DBOptions{Dir: dir, NodeID: "n1"})
	wantRefusal(t, err, cluster.ReasonBlocked, "has format 2")
}

// What the journal saved survives a crash; neighbours under other prefixes are not seen.
func TestJournalIsSyncedAndSeparate(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db := openDB(t, fs, "/data")
	j := db.Journal()
	for k, v := range map[string]string{"move/1": "a", "move/2": "b", "outbound/1": "c", "movf": "d"} {
		if err := j.Save(k, []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Delete("move/2"); err != nil {
		t.Fatal(err)
	}
	if err := db.Pebble().Set([]byte(IngressPrefix+"x"), []byte("y"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	closeDB(t, db)
	db = openDB(t, crashed, "/data")
	defer closeDB(t, db)
	got, err := db.Journal().Load("move/")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || !bytes.Equal(got["move/1"], []byte("a")) {
		t.Fatalf("got %q", got)
	}
}

func TestViewCacheRoundTrip(t *testing.T) {
	db := openDB(t, vfs.NewMem(), "/data")
	defer closeDB(t, db)
	if c, err := db.LoadView(); err != nil || c != nil {
		t.Fatalf("empty cache: %v, %v", c, err)
	}
	v := NewView()
	v.Fold(true, 9, []cluster.Change{
		{Node: &cluster.Node{ID: "n1", Address: "a:1", Status: cluster.NodeAlive}},
		{Topic: &cluster.Topic{ID: 3, Name: "orders", Partitions: 2}},
		{Assignment: &cluster.Assignment{Partition: pid(3, 0), Owner: "n1", Epoch: 4, Opened: true}},
		{Assignment: &cluster.Assignment{Partition: pid(3, 1), Owner: "n2", Target: "n1", Epoch: 5, MoveID: 8}},
	})
	if err := db.SaveView(v, "n1"); err != nil {
		t.Fatal(err)
	}
	changes, err := db.LoadView()
	if err != nil {
		t.Fatal(err)
	}
	got := NewView()
	got.Fold(true, 0, changes)
	if got.Nodes["n1"].Address != "a:1" {
		t.Fatalf("nodes %v", got.Nodes)
	}
	if len(got.Assignments) != 1 || got.Assignments[pid(3, 0)] != v.Assignments[pid(3, 0)] {
		t.Fatalf("only owned partitions are served from the cache, got %v", got.Assignments)
	}
	if got.PartitionName(pid(3, 1)) != "orders/1" || got.Revision != 0 {
		t.Fatalf("got %q at revision %d", got.PartitionName(pid(3, 1)), got.Revision)
	}
}

func TestPartitionsDirIsInsideTheDataDirectory(t *testing.T) {
	if got := PartitionsDir("/d"); got != filepath.Join("/d", "store") {
		t.Fatal(got)
	}
}
