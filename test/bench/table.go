package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
)

// sink takes rows as they come.
type sink interface {
	add(r Row) error
	// end is called once, after the last row.
	end() error
}

// table prints everything at the end, so that columns fit.
type table struct {
	w    io.Writer
	rows []Row
}

func (t *table) add(r Row) error {
	t.rows = append(t.rows, r)
	return nil
}

func (t *table) end() error {
	w := tabwriter.NewWriter(t.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tvalue\tagainst\tunit\tratio\tgoal\t\tload\tnote")
	for _, r := range t.rows {
		value := figure(&r.Value)
		if r.Skipped {
			value = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f\t%s\n", r.Name, value, figure(r.Against), r.Unit, figure(r.Ratio), r.Goal, r.verdict(), r.Load, r.Note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	missed := 0
	for _, r := range t.rows {
		if r.verdict() == "MISSED" {
			missed++
		}
	}
	_, err := fmt.Fprintf(t.w, "%d rows, %d goals missed\n", len(t.rows), missed)
	return err
}

// figure prints three significant digits, and a dash for nothing.
func figure(v *float64) string {
	switch {
	case v == nil:
		return "-"
	case *v == 0 || math.IsInf(*v, 0) || math.IsNaN(*v):
		return fmt.Sprint(*v)
	case math.Abs(*v) >= 100:
		return fmt.Sprintf("%.0f", *v)
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(*v))))
	return fmt.Sprintf("%.*f", min(max(digits, 0), 6), *v)
}

// lines prints each row at once, as JSON.
type lines struct{ enc *json.Encoder }

func (l lines) add(r Row) error { return l.enc.Encode(r) }

func (l lines) end() error { return nil }
