// Scale prints what planning costs as a cluster grows, by a model of up to 10,000 nodes and 10 million partitions without
// data. Run it by `make scale`.
package main

import (
	"flag"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/naradctl/naradctl-plane/test/bench/planrows"
)

func main() {
	most := flag.Int("most", 10_000_000, "the largest number of partitions")
	flag.Parse()
	if err := run(*most); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(most int) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "partitions\tnodes\tview\tof it each\tnew leader\tdrain\tjoin\trefill\t5 % leave\tmoves\t÷ least\tleft\t")
	for _, size := range []struct{ nodes, parts int }{{100, 100_000}, {100, 1_000_000}, {1000, 1_000_000}, {10_000, 1_000_000}, {10_000, 10_000_000}} {
		if size.parts > most {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %d partitions on %d nodes\n", size.parts, size.nodes)
		f, err := planrows.Measure(size.nodes, size.parts)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%d\t%d\t%.0f MB\t%.0f B\t%s\t%s\t%s\t%s\t%s\t%d\t%.3f\t%d\t\n", f.Partitions, f.Nodes,
			f.BytesEach*float64(f.Partitions)/1e6, f.BytesEach, ms(f.Build), ms(f.Drain), ms(f.Join), ms(f.Refill), ms(f.Leave),
			f.Moves, float64(f.Moves)/float64(f.Least), f.Left)
	}
	return w.Flush()
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d.Microseconds())/1000) }
