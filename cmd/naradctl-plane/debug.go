package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"go.uber.org/zap"
)

// serveDebug serves profiles on a listener of their own, which validation keeps on loopback: they tell what a daemon
// does, and taking them costs. stop ends it and waits. An empty address serves nothing.
func serveDebug(address string, log *zap.Logger) (stop func(), err error) {
	if address == "" {
		return func() {}, nil
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("debug.listen: listen on %s: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ErrorLog: zap.NewStdLog(log.Named("debug"))}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ln) // it ends with stop; nothing depends on it
	}()
	log.Info("profiles are served", zap.Stringer("address", ln.Addr()))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.Shutdown(ctx) != nil {
			_ = s.Close() // a profile that is being taken is cut off
		}
		<-done
	}, nil
}
