package main

import (
	"context"
	"errors"

	"github.com/naradctl/naradctl-plane/internal/cluster"
)

// The exit codes. Scripts rely on them.
const (
	codeDone     = 0
	codeError    = 1
	codeUsage    = 2
	codeRefused  = 3
	codeTimeout  = 4
	codeNotFound = 5
	codeNoLeader = 6
)

// exitError is an error with the code that it ends the program with.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// withCode gives err an exit code.
func withCode(code int, err error) error { return &exitError{code: code, err: err} }

// exitCode returns the code that err ends the program with.
func exitCode(err error) int {
	if err == nil {
		return codeDone
	}
	var e *exitError
	if errors.As(err, &e) {
		return e.code
	}
	switch cluster.ReasonOf(err) {
	case cluster.ReasonInvalid:
		return codeUsage
	case cluster.ReasonNotFound:
		return codeNotFound
	case cluster.ReasonNoLeader:
		return codeNoLeader
	case cluster.ReasonBlocked, cluster.ReasonGate, cluster.ReasonForeignStore, cluster.ReasonStaleIncarnation:
		return codeRefused
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return codeTimeout
	}
	return codeError
}
