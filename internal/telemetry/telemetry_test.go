package telemetry

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestMetricsPageAndPush: a counter shows up on the page, and is pushed to the collector by Shutdown.
func TestMetricsPageAndPush(t *testing.T) {
	var metrics, traces atomic.Int32
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/metrics":
			metrics.Add(1)
		case "/v1/traces":
			traces.Add(1)
		}
	}))
	defer collector.Close()
	ctx := context.Background()
	tel, err := New(ctx, Config{
		Level: "error", Format: "json", OTLPEndpoint: collector.URL, Interval: time.Hour, Traces: true,
		Service: "test", Instance: "t-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	counter, err := tel.Meters.Meter("test").Int64Counter("naradplane_test_events")
	if err != nil {
		t.Fatal(err)
	}
	counter.Add(ctx, 3)
	_, span := tel.traces.Tracer("test").Start(ctx, "a")
	span.End()

	rec := httptest.NewRecorder()
	tel.Metrics.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if want := "naradplane_test_events_total 3"; !strings.Contains(rec.Body.String(), want) {
		t.Errorf("no %q on the page:\n%s", want, rec.Body)
	}
	if err := tel.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if metrics.Load() == 0 || traces.Load() == 0 {
		t.Errorf("pushed %d times metrics and %d times traces, want both", metrics.Load(), traces.Load())
	}
}

func TestExporterErrorsAreLoggedOncePerMinute(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	h := newErrorLog(zap.New(core))
	for range 100 {
		h.Handle(errors.New("no route"))
	}
	if n := logs.Len(); n != 1 {
		t.Errorf("logged %d lines for 100 errors at once, want 1", n)
	}
}

func TestNewLoggerRefusesUnknownLevel(t *testing.T) {
	if _, err := NewLogger("loud", "json"); err == nil {
		t.Error("level \"loud\" was accepted")
	}
}
