// Package telemetry sets up what a daemon says about itself: a zap logger, OpenTelemetry metrics on a
// Prometheus page and, on request, pushed to an OTLP collector with traces.
//
// It defines no metric. Rooms take a logger or use the global meter and tracer providers, which
// New sets.
//
// Faults: a collector that can't be reached costs dropped data and one warning at most each minute; it never
// blocks the daemon. Shutdown is bounded by its context.
//
// Concurrency: New and Shutdown are called once each; everything else is safe for concurrent use.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Config says what to set up.
type Config struct {
	// Level is debug, info, warn or error.
	Level string
	// Format is json or console.
	Format string
	// OTLPEndpoint is the URL of an OTLP/HTTP collector; empty pushes nothing.
	OTLPEndpoint string
	// Interval is how often metrics are pushed.
	Interval time.Duration
	// Traces also pushes traces to OTLPEndpoint.
	Traces bool
	// Service and Instance name the process: "controller", "ctl-1".
	Service, Instance string
	// Version is the program's.
	Version string
}

// Telemetry is what New set up. Shutdown ends it.
type Telemetry struct {
	// Log writes to standard error.
	Log *zap.Logger
	// Metrics serves /metrics.
	Metrics http.Handler
	// Meters is the meter provider, also set as the global one.
	Meters *sdkmetric.MeterProvider

	traces *sdktrace.TracerProvider
}

// NewLogger builds a logger on standard error.
func NewLogger(level, format string) (*zap.Logger, error) {
	var c zap.Config
	if format == "console" {
		c = zap.NewDevelopmentConfig()
		c.DisableStacktrace = true
		c.Development = false
	} else {
		c = zap.NewProductionConfig()
		c.DisableStacktrace = true
		c.EncoderConfig.TimeKey = "time"
		c.EncoderConfig.MessageKey = "message"
	}
	c.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	c.EncoderConfig.EncodeDuration = zapcore.StringDurationEncoder
	lvl, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("log level: %w", err)
	}
	c.Level = zap.NewAtomicLevelAt(lvl)
	return c.Build()
}

// New sets everything up and makes the providers global.
func New(ctx context.Context, c Config) (*Telemetry, error) {
	log, err := NewLogger(c.Level, c.Format)
	if err != nil {
		return nil, err
	}
	res := resource.NewSchemaless(
		attribute.String("service.name", "naradplane-"+c.Service),
		attribute.String("service.instance.id", c.Instance),
		attribute.String("service.version", c.Version),
	)
	// The default registry already has what libraries register there: the Go runtime, the process, and
	// the log's sync times.
	page, err := otelprom.New(otelprom.WithRegisterer(prometheus.DefaultRegisterer), otelprom.WithoutTargetInfo(), otelprom.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("set up the metrics page: %w", err)
	}
	options := []sdkmetric.Option{sdkmetric.WithResource(res), sdkmetric.WithReader(page)}
	t := &Telemetry{Log: log, Metrics: promhttp.Handler()}
	if c.OTLPEndpoint != "" {
		push, err := otlpmetrichttp.New(ctx, otlpmetrichttp.WithEndpointURL(signalURL(c.OTLPEndpoint, "/v1/metrics")))
		if err != nil {
			return nil, fmt.Errorf("set up pushing metrics to %s: %w", c.OTLPEndpoint, err)
		}
		options = append(options, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(push, sdkmetric.WithInterval(c.Interval))))
	}
	if c.OTLPEndpoint != "" && c.Traces {
		push, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(signalURL(c.OTLPEndpoint, "/v1/traces")))
		if err != nil {
			return nil, fmt.Errorf("set up pushing traces to %s: %w", c.OTLPEndpoint, err)
		}
		t.traces = sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithBatcher(push))
		otel.SetTracerProvider(t.traces)
	}
	t.Meters = sdkmetric.NewMeterProvider(options...)
	otel.SetMeterProvider(t.Meters)
	otel.SetErrorHandler(newErrorLog(log))
	return t, nil
}

// NewPage returns a meter provider of its own and the page with its metrics and the process's. It is for several
// daemons in one process, whose metrics have the same names. Nothing needs to be shut down: a page is read, never
// pushed.
func NewPage() (*sdkmetric.MeterProvider, http.Handler, error) {
	own := prometheus.NewRegistry()
	page, err := otelprom.New(otelprom.WithRegisterer(own), otelprom.WithoutTargetInfo(), otelprom.WithoutScopeInfo())
	if err != nil {
		return nil, nil, fmt.Errorf("set up a metrics page: %w", err)
	}
	all := prometheus.Gatherers{own, prometheus.DefaultGatherer}
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(page)), promhttp.HandlerFor(all, promhttp.HandlerOpts{}), nil
}

// signalURL is where a collector takes a signal; a base URL alone would be used as it is.
func signalURL(base, path string) string { return strings.TrimSuffix(base, "/") + path }

// Shutdown pushes what is left and ends everything. It returns when that is done or ctx is.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	err := t.Meters.Shutdown(ctx)
	if t.traces != nil {
		err = errors.Join(err, t.traces.Shutdown(ctx))
	}
	// Syncing a terminal or a pipe fails on some systems and loses nothing there.
	_ = t.Log.Sync()
	return err
}
