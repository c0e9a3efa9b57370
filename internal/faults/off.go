//go:build !faults

package faults

import "net/http"

// Enabled says whether this binary has fault points.
const Enabled = false

// Hit does nothing in this binary.
func Hit(Event) error { return nil }

// Handler is nil in this binary.
func Handler() http.Handler { return nil }
