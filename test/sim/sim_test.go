package sim

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"
)

var (
	seedFlag  = flag.Uint64("sim.seed", 0, "run this seed alone and print its trace's end")
	nFlag     = flag.Int("sim.n", 0, "how many seeds to run")
	fromFlag  = flag.Uint64("sim.from", 1, "the first seed")
	traceFlag = flag.Bool("sim.trace", false, "print the whole trace")
	once      = flag.Bool("sim.once", false, "run each seed once, without comparing two traces")
	stop      = flag.Bool("sim.stop", false, "end with the first seed that shows a violation")
	commit    = flag.String("sim.commit", "unknown", "the commit, for failure messages")
)

// summary is the last line of a run of many seeds.
var summary string

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if summary != "" {
		fmt.Println(summary)
	}
	os.Exit(code)
}

// simulate runs a seed with chance that replays.
func simulate(t *testing.T, seed uint64) (res Result) {
	t.Helper()
	t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		opts := Options{}
		if *traceFlag {
			opts.Trace = os.Stdout
		}
		res = Run(seed, opts)
	})
	return res
}

// TestI1I2I3I4I5I6I7I8I9I10HoldInSimulation: no seed violates an invariant or fails to converge, and each seed's
// two runs are alike.
func TestI1I2I3I4I5I6I7I8I9I10HoldInSimulation(t *testing.T) {
	from, n := *fromFlag, *nFlag
	if *seedFlag != 0 {
		from, n = *seedFlag, 1
	}
	if n == 0 {
		n = defaultSeeds
	}
	start := time.Now()
	var events uint64
	violations, acked, flips, forced := 0, 0, 0, 0
	for seed := from; seed < from+uint64(n); seed++ {
		res := simulate(t, seed)
		events += res.Events
		acked, flips, forced = acked+res.Acked, flips+res.Flips, forced+res.Forced
		if res.Violation != nil {
			violations++
			t.Errorf("seed %d at commit %s: %v\n%s\nagain: make sim SEED=%d", seed, *commit, res.Violation, strings.Join(res.Tail, "\n"), seed)
			if *stop {
				n = int(seed-from) + 1
				break
			}
			continue
		}
		if *once {
			continue
		}
		again := simulate(t, seed)
		events += again.Events
		if again.Hash != res.Hash {
			violations++
			t.Errorf("seed %d at commit %s: two runs differ: %s after %d events, %s after %d\nagain: make sim SEED=%d",
				seed, *commit, res.Hash, res.Events, again.Hash, again.Events, seed)
		}
	}
	t.Logf("%d records acknowledged, %d flips, %d promotions", acked, flips, forced)
	summary = fmt.Sprintf("sim: seeds=%d violations=%d events=%d events_per_s=%.0f", n, violations, events, float64(events)/time.Since(start).Seconds())
	if flips == 0 && n > 3 {
		t.Error("nothing was moved: the simulation shows nothing")
	}
}

// defaultSeeds is how many seeds a plain go test runs.
const defaultSeeds = 40
