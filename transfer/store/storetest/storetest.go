// Package storetest is the conformance suite of store.PartitionStore: whoever implements the store runs it
// from a test of their own. It checks each rule that transfer/store states, with a restart and a power cut
// where the rule is about durability.
//
// The suite appends and reads through functions that the factory gives, since how records get in
// and out is the data plane's own affair.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/naradctl/naradctl-plane/internal/cluster"
	"github.com/naradctl/naradctl-plane/transfer/store"
)

// Options are how a factory must set up its store.
type Options struct {
	// SegmentBytes is the length at which a file is sealed; small, so that there are several.
	SegmentBytes cluster.Bytes
	Lease        store.LeaseCheck
	Clock        store.Clock
}

// Instance is a store under test with the data plane's own operations. All fields must be set, but for
// Crash.
type Instance struct {
	Store store.PartitionStore
	// Append adds records and returns the first one's offset when they are durable.
	Append func(ctx context.Context, p cluster.PartitionID, recs []store.Record) (cluster.Offset, error)
	// Read returns records from an offset on, below the HWM.
	Read func(p cluster.PartitionID, from cluster.Offset) ([]store.Record, error)
	// Commit and Committed set and get a group's committed offset.
	Commit    func(p cluster.PartitionID, group string, off cluster.Offset) error
	Committed func(p cluster.PartitionID, group string) (cluster.Offset, bool)
	// Expire sets the retention and applies it now.
	Expire func(p cluster.PartitionID, retention time.Duration) error
	// Restart ends the process and starts another on the same files; the old instance is not used again.
	Restart func(t *testing.T) *Instance
	// Crash cuts the power and starts again with what was synced; nil when that can't be tried.
	Crash func(t *testing.T) *Instance
	// Damage inverts one byte of a file of a copy, behind the store's back.
	Damage func(t *testing.T, p cluster.PartitionID, place store.Place, id store.Identity, name string, off int64)
}

// Factory makes an empty store that ends with the test.
type Factory func(t *testing.T, o Options) *Instance

// Run runs the suite.
func Run(t *testing.T, f Factory) {
	for _, c := range []struct {
		name string
		fn   func(t *testing.T, f Factory)
	}{
		{"create", testCreate},
		{"open", testOpen},
		{"I3_restart_keeps_all", testRestart},
		{"manifest", testManifest},
		{"manifest_known", testManifestKnown},
		{"C04_freeze", testFreeze},
		{"C04_freeze_under_load", testFreezeUnderLoad},
		{"freeze_tokens", testFreezeTokens},
		{"I7_open_frozen", testOpenFrozen},
		{"I10_lease", testLease},
		{"I3_hidden_tail", testHiddenTail},
		{"C21_retention", testRetention},
		{"C22_retention_clock", testRetentionClock},
		{"C24_groups_travel", testGroupsTravel},
		{"move", testMove},
		{"C23_small_partitions", testSmallPartitions},
		{"staging_writes", testStagingWrites},
		{"C02_stage_measures", testStageMeasures},
		{"C28_damage_is_found", testDamage},
		{"C72_same_length_other_bytes", testOtherBytes},
		{"I5_finalize_refuses", testFinalizeRefuses},
		{"finalize_reads_the_tail", testFinalizeReads},
		{"finalize_forced", testFinalizeForced},
		{"install_rollback", testInstall},
		{"quarantine", testQuarantine},
		{"C44_C77_delete_by_identity", testDelete},
		{"C20_power_cut", testPowerCut},
		{"copies", testCopies},
	} {
		t.Run(c.name, func(t *testing.T) { c.fn(t, f) })
	}
}

var (
	part  = cluster.PartitionID{Topic: 7, Index: 3}
	other = cluster.PartitionID{Topic: 7, Index: 4}
)

const topicID = store.Identity(7)

func small() Options {
	return Options{SegmentBytes: 4 << 10, Clock: func() time.Time { return time.UnixMilli(1_000_000) }}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantReason(t *testing.T, err error, r cluster.Reason) {
	t.Helper()
	if err == nil || cluster.ReasonOf(err) != r {
		t.Fatalf("got error %v, want reason %s", err, r)
	}
}

// refused wants an error of whatever reason.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Fatalf("%s was accepted, want an error", what)
	}
}

// equal reports what differs from want.
func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%s differs (-want +got):\n%s", what, d)
	}
}

// records makes n records with contents that tell their offsets.
func records(first, n int) []store.Record {
	out := make([]store.Record, n)
	for i := range out {
		k := first + i
		out[i] = store.Record{
			Offset: cluster.Offset(k), Time: int64(1000 + k), Key: fmt.Appendf(nil, "key-%d", k%13),
			Value: fmt.Appendf(nil, "value-%d-%0*d", k, 50+k%97, k),
		}
	}
	return out
}

// fill appends records(first, n) in appends of 10 and checks the offsets.
func fill(t *testing.T, in *Instance, p cluster.PartitionID, first, n int) []store.Record {
	t.Helper()
	all := records(first, n)
	for at := 0; at < n; at += 10 {
		recs := all[at:min(at+10, n)]
		off, err := in.Append(context.Background(), p, recs)
		must(t, err)
		equal(t, "offset of an append", off, recs[0].Offset)
	}
	return all
}

// served makes an instance with an open partition of n records.
func served(t *testing.T, f Factory, o Options, n int) (*Instance, []store.Record) {
	t.Helper()
	in := f(t, o)
	must(t, in.Store.Create(part, topicID))
	must(t, in.Store.Open(part, 1))
	return in, fill(t, in, part, 0, n)
}

func readAll(t *testing.T, in *Instance, p cluster.PartitionID, from cluster.Offset) []store.Record {
	t.Helper()
	var out []store.Record
	for {
		recs, err := in.Read(p, from)
		must(t, err)
		if len(recs) == 0 {
			return out
		}
		out = append(out, recs...)
		from = recs[len(recs)-1].Offset + 1
	}
}

func manifest(t *testing.T, in *Instance, p cluster.PartitionID) store.Manifest {
	t.Helper()
	m, err := in.Store.Manifest(p, nil)
	must(t, err)
	return m
}

// content reads a file of the source as far as the manifest lists it.
func content(t *testing.T, in *Instance, p cluster.PartitionID, f store.File) []byte {
	t.Helper()
	r, err := in.Store.OpenFile(p, f.Name)
	must(t, err)
	defer func() { must(t, r.Close()) }()
	if r.Size() < int64(f.Size) {
		t.Fatalf("file %s can be read up to %d, the manifest lists %d bytes", f.Name, r.Size(), f.Size)
	}
	b := make([]byte, f.Size)
	if n, err := r.ReadAt(b, 0); n < len(b) || err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("read file %s: %d of %d bytes, %v", f.Name, n, len(b), err)
	}
	return b
}

// pull writes what st does not have of m's files, in pieces of an odd length, so that frames straddle them.
func pull(t *testing.T, src *Instance, st store.Staging, m store.Manifest) {
	t.Helper()
	have := map[string]int64{}
	for _, f := range st.Files() {
		have[f.Name] = int64(f.Size)
	}
	for _, f := range m.Files {
		b := content(t, src, part, f)
		for at := have[f.Name]; at < int64(len(b)); {
			end := min(at+777, int64(len(b)))
			must(t, st.Write(f.Name, at, b[at:end]))
			at = end
		}
	}
}

// move freezes the partition at src, copies it to dst and installs it there, not confirmed.
func move(t *testing.T, src, dst *Instance, id cluster.MoveID) store.Manifest {
	t.Helper()
	ctx := context.Background()
	must(t, src.Store.Freeze(ctx, part, store.FreezeToken{MoveID: id, Handoff: 1}))
	m := manifest(t, src, part)
	st, err := dst.Store.Stage(ctx, part, id)
	must(t, err)
	pull(t, src, st, m)
	_, err = st.Finalize(ctx, m)
	must(t, err)
	must(t, st.Install(store.Pending{MoveID: id, Handoff: 1}))
	return m
}

func copies(t *testing.T, in *Instance) []store.Copy {
	t.Helper()
	cs, err := in.Store.Copies()
	must(t, err)
	one, ok := in.Store.(interface {
		CopiesOf(p cluster.PartitionID) ([]store.Copy, error)
	})
	if !ok {
		return cs
	}
	// A store may offer the copies of one partition. They are the same.
	byPartition := map[cluster.PartitionID][]store.Copy{}
	for _, c := range cs {
		byPartition[c.Partition] = append(byPartition[c.Partition], c)
	}
	for p, want := range byPartition {
		got, err := one.CopiesOf(p)
		must(t, err)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("CopiesOf(%s) (-Copies +CopiesOf):\n%s", p, diff)
		}
	}
	return cs
}

// find returns the one copy in a place, or nil.
func find(t *testing.T, in *Instance, p cluster.PartitionID, place store.Place) *store.Copy {
	t.Helper()
	for _, c := range copies(t, in) {
		if c.Partition == p && c.Place == place {
			return &c
		}
	}
	return nil
}
