package planrows

import "testing"

// TestModelIsMeasured: the model is in balance, everything that leaves moves once, and nothing is left to do.
func TestModelIsMeasured(t *testing.T) {
	f, err := Measure(100, 20_000)
	if err != nil {
		t.Fatal(err)
	}
	if f.Moves != 1000 || f.Least != 1000 || f.Left != 0 {
		t.Fatalf("five of 100 nodes with 200 partitions each leave: %d moves, least %d, %d left", f.Moves, f.Least, f.Left)
	}
	if f.Build <= 0 || f.Leave <= 0 || f.BytesEach < 20 || f.BytesEach > 1000 {
		t.Fatalf("%+v", f)
	}
}
