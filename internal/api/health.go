package api

import (
	"encoding/json"
	"net/http"
	"time"
)

// healthz says that the process serves; it does not ask whether it is useful.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
}

// notReady says why this controller can't answer requests; nothing when it can.
func (s *Server) notReady() []string {
	reasons := []string{}
	select {
	case <-s.stopping:
		reasons = append(reasons, "this controller is stopping")
	default:
	}
	select {
	case <-s.deps.Backend.Done():
		reason := "consensus has stopped"
		if err := s.deps.Backend.Err(); err != nil {
			reason += ": " + err.Error()
		}
		reasons = append(reasons, reason)
	default:
		if s.deps.Backend.Status().Leader == 0 {
			reasons = append(reasons, "no leader is known")
		}
	}
	return reasons
}

// readyz says whether this controller can answer requests, and why not.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	reasons := s.notReady()
	status, code := "ready", http.StatusOK
	if len(reasons) > 0 {
		status, code = "not ready", http.StatusServiceUnavailable
	}
	writeJSON(w, code, map[string]any{"status": status, "reasons": reasons, "uptime": time.Since(s.started).Round(time.Second).String()})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client has gone when this fails
}
