package partitionlog

import (
	"testing"

	"github.com/naradctl/naradctl-plane/transfer/store"
)

// FuzzNames: a name in a partition's directory means one thing, or nothing.
func FuzzNames(f *testing.F) {
	for _, n := range []string{segmentName(0), segmentName(1 << 63), pendingName(store.Pending{MoveID: 7, Handoff: 2}), "pending-flip-1-", "42", "042", "+1", ""} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, name string) {
		base, seg := parseSegmentName(name)
		if seg && segmentName(base) != name {
			t.Fatalf("%q is read as segment %d, which is named %q", name, base, segmentName(base))
		}
		p, pending := parsePendingName(name)
		if pending && pendingName(*p) != name {
			t.Fatalf("%q is read as %+v, which is named %q", name, *p, pendingName(*p))
		}
		_, number := parseDirNumber(name)
		if (seg && pending) || (seg && number) || (pending && number) {
			t.Fatalf("%q has two meanings", name)
		}
	})
}
