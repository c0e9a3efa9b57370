package telemetry

import (
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

// errorLog logs the exporters' errors, one each minute: a collector that is away fails at every push.
type errorLog struct {
	log   *zap.Logger
	limit *rate.Limiter
}

func newErrorLog(log *zap.Logger) *errorLog {
	return &errorLog{log: log, limit: rate.NewLimiter(rate.Every(time.Minute), 1)}
}

// Handle implements otel.ErrorHandler.
func (e *errorLog) Handle(err error) {
	if e.limit.Allow() {
		e.log.Warn("telemetry was dropped; the next push tries again", zap.Error(err))
	}
}
