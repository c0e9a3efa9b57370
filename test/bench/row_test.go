package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// A row says that its goal was missed when it was, and only then; what was not measured says neither.
func TestRowsAreJudged(t *testing.T) {
	for _, k := range []struct {
		row  Row
		want string
	}{
		{compared("r", 90, 100, "MB/s", ratioAtLeast(0.9), ""), "ok"},
		{compared("r", 89, 100, "MB/s", ratioAtLeast(0.9), ""), "MISSED"},
		{compared("r", 110, 100, "ms", ratioAtMost(1.1), ""), "ok"},
		{compared("r", 111, 100, "ms", ratioAtMost(1.1), ""), "MISSED"},
		{compared("r", 1, 0, "ms", ratioAtMost(1.1), ""), "MISSED"},
		{row("r", 200, "moves/s", valueAtLeast(200), ""), "ok"},
		{row("r", 199, "moves/s", valueAtLeast(200), ""), "MISSED"},
		{row("r", 10, "s", valueAtMost(10), ""), "ok"},
		{row("r", 10.1, "s", valueAtMost(10), ""), "MISSED"},
		{row("r", 1, "ms", reported, ""), ""},
		{skipped("r", "MB/s", ratioAtLeast(1.5), "it is not installed"), "skipped"},
	} {
		if got := k.row.verdict(); got != k.want {
			t.Errorf("%+v: verdict %q, want %q", k.row, got, k.want)
		}
	}
}

// The table counts what was missed, and JSON has the fields that are promised, each row on a line.
func TestRowsArePrinted(t *testing.T) {
	rows := []Row{
		compared("copy", 450.5, 500, "MB/s", ratioAtLeast(0.9), "against a loop"), row("drain", 31.25, "moves/s", valueAtLeast(200), ""),
		skipped("rsync", "MB/s", ratioAtLeast(1.5), "it is not installed"),
	}
	var text strings.Builder
	tb := &table{w: &text}
	for _, r := range rows {
		_ = tb.add(r)
	}
	if err := tb.end(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"450", "0.901", "31.2", "MISSED", "skipped: it is not installed", "3 rows, 1 goals missed"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, text.String())
		}
	}
	text.Reset()
	l := lines{json.NewEncoder(&text)}
	for _, r := range rows {
		if err := l.add(r); err != nil {
			t.Fatal(err)
		}
	}
	got := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(got) != len(rows) {
		t.Fatalf("%d lines for %d rows", len(got), len(rows))
	}
	var first map[string]any
	if err := json.Unmarshal([]byte(got[0]), &first); err != nil {
		t.Fatal(err)
	}
	for k, want := range map[string]any{"row": "copy", "value": 450.5, "unit": "MB/s", "against": 500.0, "ratio": 0.901, "goal": "ratio >= 0.9", "ok": true} {
		if first[k] != want {
			t.Errorf("%s is %v, want %v", k, first[k], want)
		}
	}
}

// Groups that are named run, and a name that is none is refused.
func TestGroupsAreChosen(t *testing.T) {
	got, err := choose("drain,copy")
	if err != nil || len(got) != 2 || got[0].name != "copy" || got[1].name != "drain" {
		t.Errorf("chosen are %v, error %v", got, err)
	}
	if _, err := choose("copy,freezes"); err == nil || !strings.Contains(err.Error(), "freezes") {
		t.Errorf("an unknown group: error %v", err)
	}
	if all, err := choose(""); err != nil || len(all) != len(groups) {
		t.Errorf("%d groups without names, error %v", len(all), err)
	}
}
