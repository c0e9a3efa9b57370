package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"

	"github.com/naradctl/naradctl-plane/internal/faults"
)

const (
	// stopTimeout bounds a graceful stop. It is shorter than systemd's default, so that the process
	// ends by itself.
	stopTimeout = 20 * time.Second
	// drainTimeout bounds waiting for requests in progress; streams are cut after it.
	drainTimeout = 3 * time.Second
)

// listen binds a daemon's one listener. The error names the address and what to do.
func listen(key, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%s: %s is in use: is another one running? choose another port with --listen", key, address)
	case err != nil:
		return nil, fmt.Errorf("%s: listen on %s: %w", key, address, err)
	}
	return ln, nil
}

// advertised is the address that others dial: what was configured, or what was bound when a free port was
// asked for.
func advertised(configured string, ln net.Listener) string {
	host, port, err := net.SplitHostPort(configured)
	if err != nil || port != "0" {
		return configured
	}
	_, port, err = net.SplitHostPort(ln.Addr().String())
	if err != nil {
		return configured
	}
	return net.JoinHostPort(host, port)
}

// newHTTPServer serves HTTP/1.1 and HTTP/2, over TLS when there are credentials. There is no WriteTimeout: it would cut watch
// streams; those set a deadline for each message.
func newHTTPServer(handler http.Handler, creds *credentials, log *zap.Logger) *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(creds != nil)
	p.SetUnencryptedHTTP2(creds == nil)
	s := &http.Server{
		Handler:           jsonByDefault(handler),
		Protocols:         p,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          zap.NewStdLog(log.Named("http")),
	}
	if creds != nil {
		s.TLSConfig = creds.server()
	}
	return s
}

// readiness says why a daemon is not ready; nothing when it is.
type readiness func() []string

// mountHealth adds /healthz and /readyz.
func mountHealth(mux *http.ServeMux, ready readiness) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeHealth(w, http.StatusOK, "ok", nil)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if reasons := ready(); len(reasons) > 0 {
			writeHealth(w, http.StatusServiceUnavailable, "not ready", reasons)
			return
		}
		writeHealth(w, http.StatusOK, "ready", nil)
	})
}

func writeHealth(w http.ResponseWriter, code int, status string, reasons []string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	doc := struct {
		Status  string   `json:"status"`
		Reasons []string `json:"reasons"`
	}{status, append([]string{}, reasons...)}
	_ = json.NewEncoder(w).Encode(doc) // the client has gone when this fails
}

// mountCommon adds what each daemon serves besides its API and health.
func mountCommon(mux *http.ServeMux, metrics http.Handler) {
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	if faults.Enabled {
		mux.Handle("/debug/faults", faults.Handler())
	}
}

// httpService is a running server. stop ends it and waits.
type httpService struct {
	server *http.Server
	failed chan error // closed when Serve has ended; holds its error, if any
}

func serveHTTP(ln net.Listener, handler http.Handler, creds *credentials, log *zap.Logger) *httpService {
	s := &httpService{server: newHTTPServer(handler, creds, log), failed: make(chan error, 1)}
	go func() {
		defer close(s.failed)
		serve := s.server.Serve
		if creds != nil {
			serve = func(ln net.Listener) error { return s.server.ServeTLS(ln, "", "") }
		}
		if err := serve(ln); !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("serve %s: %w", ln.Addr(), err)
		}
	}()
	return s
}

// stop lets requests in progress end for a while, cuts the rest, and waits for the server's goroutine.
func (s *httpService) stop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		// Streams do not end by themselves; their clients go elsewhere.
		_ = s.server.Close()
	}
	for range s.failed {
	}
}

// notifier tells systemd how the daemon is. Without systemd it does nothing.
type notifier struct {
	log    *zap.Logger
	cancel context.CancelFunc
	done   chan struct{}
}

// notifyReady reports READY and begins to feed the watchdog, as long as alive says so.
func notifyReady(log *zap.Logger, status string, alive func() bool) *notifier {
	ctx, cancel := context.WithCancel(context.Background())
	n := &notifier{log: log, cancel: cancel, done: make(chan struct{})}
	n.send(daemon.SdNotifyReady + "\nSTATUS=" + status)
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the watchdog's interval can't be read; systemd will restart this process", zap.Error(err))
	}
	go func() {
		defer close(n.done)
		if interval <= 0 {
			return
		}
		t := time.NewTicker(interval / 3)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				if alive() {
					n.send(daemon.SdNotifyWatchdog)
				}
			}
		}
	}()
	return n
}

// selfCheck asks the daemon's own listener, as a client would: a process that does not accept and answer is
// as good as dead, whatever its goroutines do.
//
// The name in the URL is the advertised one, which the certificate has; the connection goes to the listener.
func selfCheck(ln net.Listener, advertised string, creds *credentials) func() bool {
	transport := creds.http1(2*time.Second, 1)
	transport.DisableKeepAlives = true
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, ln.Addr().String())
	}
	client := &http.Client{Timeout: 2 * time.Second, Transport: transport}
	return func() bool {
		resp, err := client.Get(creds.scheme() + "://" + advertised + "/healthz")
		if err != nil {
			return false
		}
		// What counts is that there was an answer.
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
}

func (n *notifier) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		n.log.Warn("systemd was not notified", zap.Error(err))
	}
}

// stopping reports STOPPING and ends the watchdog's goroutine.
func (n *notifier) stopping() {
	n.send(daemon.SdNotifyStopping)
	n.cancel()
	<-n.done
}
