package main

import (
	"net/http"
	"slices"
	"strings"
)

// maxRequestBytes bounds a request to an agent. Produce and append are bounded to 4 MiB of records by their
// handlers, which answer with a reason; this leaves room for what is around them.
const maxRequestBytes = 8 << 20

// bodyMethods are those of requests that may have a body.
var bodyMethods = []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// jsonByDefault lets curl -d work: what a command line sends without naming a type is JSON. A browser
// names itself by one of two headers and gets no such help, since a foreign page may send forms, but not JSON.
func jsonByDefault(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := r.Header
		kind := h.Get("Content-Type")
		call := strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/narad")
		if call && slices.Contains(bodyMethods, r.Method) && h.Get("Origin") == "" && h.Get("Sec-Fetch-Site") == "" &&
			(kind == "" || kind == "application/x-www-form-urlencoded") {
			r = r.Clone(r.Context())
			r.Header.Set("Content-Type", "application/json")
		}
		next.ServeHTTP(w, r)
	})
}
