package main

import "fmt"

// Row is one line of the table. Against, Ratio and OK are nil when there is nothing to compare with, or no goal.
type Row struct {
	// Name says what was measured; Unit is Value's and Against's.
	Name    string   `json:"row"`
	Value   float64  `json:"value"`
	Unit    string   `json:"unit"`
	Against *float64 `json:"against"`
	Ratio   *float64 `json:"ratio"`
	Goal    string   `json:"goal"`
	OK      *bool    `json:"ok"`
	// Note says against what, and what else belongs to the figure.
	Note string `json:"note,omitempty"`
	// Load is the one-minute load average when the row was measured.
	Load float64 `json:"load"`
	// Skipped says that nothing was measured; Note says why.
	Skipped bool `json:"skipped,omitempty"`
}

// goal is what a row is to reach.
type goal struct {
	text string
	met  func(Row) bool
}

var reported = goal{text: "reported"}

func ratioAtLeast(x float64) goal {
	return goal{fmt.Sprintf("ratio >= %g", x), func(r Row) bool { return r.Ratio != nil && *r.Ratio >= x }}
}

func ratioAtMost(x float64) goal {
	return goal{fmt.Sprintf("ratio <= %g", x), func(r Row) bool { return r.Ratio != nil && *r.Ratio <= x }}
}

func valueAtLeast(x float64) goal {
	return goal{fmt.Sprintf(">= %g", x), func(r Row) bool { return r.Value >= x }}
}

func valueAtMost(x float64) goal {
	return goal{fmt.Sprintf("<= %g", x), func(r Row) bool { return r.Value <= x }}
}

// row makes a row of a value alone.
func row(name string, value float64, unit string, g goal, note string) Row {
	r := Row{Name: name, Value: value, Unit: unit, Note: note}
	return r.judged(g)
}

// compared makes a row of a value and what it is compared with.
func compared(name string, value, against float64, unit string, g goal, note string) Row {
	r := Row{Name: name, Value: value, Unit: unit, Against: &against, Note: note}
	if against != 0 {
		ratio := value / against
		r.Ratio = &ratio
	}
	return r.judged(g)
}

// skipped makes a row that was not measured.
func skipped(name, unit string, g goal, why string) Row {
	return Row{Name: name, Unit: unit, Goal: g.text, Note: "skipped: " + why, Skipped: true}
}

func (r Row) judged(g goal) Row {
	r.Goal = g.text
	if g.met != nil {
		ok := g.met(r)
		r.OK = &ok
	}
	return r
}

// verdict is the table's last word on a row.
func (r Row) verdict() string {
	switch {
	case r.Skipped:
		return "skipped"
	case r.OK == nil:
		return ""
	case *r.OK:
		return "ok"
	}
	return "MISSED"
}
