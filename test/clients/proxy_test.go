package clients_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// link is a proxy that ends each connection after a life time, or after a silence, as load balancers do.
type link struct {
	address     string
	connections atomic.Int64
}

// newLink forwards to target. A connection lives for life and may be silent for idle; zero is no bound.
func newLink(t *testing.T, target string, life, idle time.Duration) *link {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	k := &link{address: ln.Addr().String()}
	var wg sync.WaitGroup
	var open sync.Map
	wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			k.connections.Add(1)
			cut := sync.OnceFunc(func() { in.Close(); out.Close() })
			open.Store(in, cut)
			if life > 0 {
				time.AfterFunc(life, cut)
			}
			touched := func() {}
			if idle > 0 {
				silence := time.AfterFunc(idle, cut)
				touched = func() { silence.Reset(idle) }
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				wg.Go(func() {
					defer cut()
					// It ends when either side does.
					_, _ = io.Copy(writer(func(b []byte) (int, error) { touched(); return pair[1].Write(b) }), pair[0])
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		open.Range(func(_, cut any) bool { cut.(func())(); return true })
		wg.Wait()
	})
	return k
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// lossy is a proxy that loses the first answer of a procedure: the request arrives, the connection breaks.
type lossy struct {
	address  string
	requests atomic.Int64 // of the procedure
}

func newLossy(t *testing.T, target, procedure string) *lossy {
	t.Helper()
	l := &lossy{}
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: target})
	p.FlushInterval = -1
	p.ModifyResponse = func(r *http.Response) error {
		if strings.HasSuffix(r.Request.URL.Path, procedure) && l.requests.Add(1) == 1 {
			return io.ErrUnexpectedEOF
		}
		return nil
	}
	p.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	s := httptest.NewServer(p)
	t.Cleanup(s.Close)
	l.address = strings.TrimPrefix(s.URL, "http://")
	return l
}
