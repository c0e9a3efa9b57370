package partitionlog

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/naradctl/naradctl-plane/transfer/store"
)

// TestC20TwinDoesNotHideOtherCopies: the end of a rename that a power cut left is removed, and the copies beside it
// are still found.
func TestC20TwinDoesNotHideOtherCopies(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openStore(t, fs, 1<<20)
	create := func(id store.Identity) {
		t.Helper()
		if err := s.Create(part, id); err != nil {
			t.Fatal(err)
		}
	}
	create(5)
	if err := s.Quarantine(part, 5); err != nil {
		t.Fatal(err)
	}
	create(3)
	twin := s.quarantineDir(part, 3)
	if ok, err := vfs.Clone(fs, fs, s.activeDir(part), twin, vfs.CloneSync); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, fs, 1<<20)
	copies, err := s.Copies()
	if err != nil {
		t.Fatal(err)
	}
	places := map[store.Place]store.Identity{}
	for _, c := range copies {
		places[c.Place] = c.Identity
	}
	if len(copies) != 2 || places[store.Active] != 3 || places[store.Quarantined] != 5 {
		t.Errorf("copies %+v, want identity 3 active and 5 in quarantine", copies)
	}
	if _, err := fs.Stat(twin); err == nil {
		t.Errorf("%s is still there", twin)
	}
}
