package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/naradctl/naradctl-plane/internal/apierr"
	"github.com/naradctl/naradctl-plane/internal/cluster"
	planev1 "github.com/naradctl/naradctl-plane/proto/naradplane/v1"
)

var rpcErrors = connecthttp.NewErrorWriter()

// WriteError answers a request with err, in the format of the request's protocol: a google.rpc.Status in JSON for REST, which
// is everything under /v1/, and that of Connect, gRPC or gRPC-Web otherwise. A *cluster.Error becomes a code and a detail.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	err = apierr.ToConnect(err)
	if !strings.HasPrefix(r.URL.Path, "/v1/") {
		// What can fail is the client's connection.
		_ = rpcErrors.Write(w, r, err)
		return
	}
	st := &spb.Status{Code: int32(connect.CodeOf(err)), Message: err.Error()}
	var ce *connect.Error
	if errors.As(err, &ce) {
		st.Message = ce.Message()
		for _, d := range ce.Details() {
			st.Details = append(st.Details, connectproto.ErrorDetailToAny(d))
		}
	}
	writeStatus(w, httpStatus(connect.CodeOf(err)), st)
}

// writeStatus writes st, without the fields that are not set.
func writeStatus(w http.ResponseWriter, code int, st *spb.Status) {
	for _, any := range st.GetDetails() {
		var d planev1.ErrorDetail
		if any.UnmarshalTo(&d) != nil {
			continue
		}
		if wait := d.GetRetryAfter().AsDuration(); wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		}
	}
	raw, err := protojson.Marshal(st)
	var b bytes.Buffer
	// Protobuf's JSON has random spaces, so that nobody compares it; people do.
	if err == nil {
		err = json.Compact(&b, raw)
	}
	if err != nil {
		http.Error(w, st.GetMessage(), code)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Del("Content-Encoding")
	h.Del("Content-Length")
	w.WriteHeader(code)
	_, _ = w.Write(append(b.Bytes(), '\n')) // the client has gone when this fails
}

// httpStatus is the HTTP status of a code, as google.rpc.Code maps them.
func httpStatus(c connect.Code) int {
	switch c {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeOutOfRange:
		return http.StatusBadRequest
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAlreadyExists, connect.CodeAborted:
		return http.StatusConflict
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeCanceled:
		return 499
	case connect.CodeUnimplemented:
		return http.StatusNotImplemented
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	case connect.CodeDeadlineExceeded:
		return http.StatusGatewayTimeout
	}
	return http.StatusInternalServerError
}

// maxErrorBytes bounds what is kept of an error that is written anew. None that is made here comes near.
const maxErrorBytes = 1 << 20

// errorRewriter passes a good answer through, and holds back one that is an error, so that it can be written as
// this package writes errors.
type errorRewriter struct {
	http.ResponseWriter
	contentType string // of the request
	code        int
	body        bytes.Buffer
}

// Unwrap lets http.ResponseController reach the connection.
func (w *errorRewriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher. What is held back is not flushed.
func (w *errorRewriter) Flush() {
	if w.code != 0 && w.code < http.StatusBadRequest {
		// A writer that can't flush has nothing to flush.
		_ = http.NewResponseController(w.ResponseWriter).Flush()
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *errorRewriter) WriteHeader(code int) {
	if w.code != 0 {
		return
	}
	w.code = code
	if code < http.StatusBadRequest {
		w.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (w *errorRewriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.code < http.StatusBadRequest {
		return w.ResponseWriter.Write(b)
	}
	if w.body.Len() < maxErrorBytes {
		w.body.Write(b)
	}
	return len(b), nil
}

// finish writes the error that was held back, if there is one.
func (w *errorRewriter) finish(r *http.Request) {
	if w.code < http.StatusBadRequest {
		return
	}
	var st spb.Status
	if protojson.Unmarshal(w.body.Bytes(), &st) == nil && st.GetCode() != 0 {
		if code := connect.Code(st.GetCode()); len(st.GetDetails()) == 0 && (code == connect.CodeInvalidArgument || code == connect.CodeUnknown) {
			// The translation's own: a query or a path that does not fit the request. It never reached the service, whose
			// errors of these codes have a detail.
			writeRefusal(w.ResponseWriter, http.StatusBadRequest, cluster.Invalid("request", "%s", st.GetMessage()))
			return
		}
		writeStatus(w.ResponseWriter, w.code, &st)
		return
	}
	writeRefusal(w.ResponseWriter, w.code, refusal(w, r))
}

// refusal says in our words what the translation refused in a line of text.
func refusal(w *errorRewriter, r *http.Request) *cluster.Error {
	switch w.code {
	case http.StatusMethodNotAllowed:
		return cluster.Invalid("method", "%s is not served at %s, only %s", r.Method, r.URL.Path, w.Header().Get("Allow"))
	case http.StatusUnsupportedMediaType:
		return cluster.Invalid("Content-Type", "must be application/json, is %q", w.contentType)
	}
	return cluster.Invalid("request", "%s", strings.TrimSpace(w.body.String()))
}

// writeRefusal answers with e under an HTTP status that says more than the one of e's code.
func writeRefusal(w http.ResponseWriter, code int, e *cluster.Error) {
	st := &spb.Status{Code: int32(apierr.Code(e.Reason)), Message: e.Message}
	if d, err := connectproto.NewErrorDetail(apierr.Detail(e)); err == nil {
		st.Details = append(st.Details, connectproto.ErrorDetailToAny(d))
	}
	writeStatus(w, code, st)
}

// tooLarge is the refusal of a body.
func tooLarge(limit int64) *cluster.Error {
	e := cluster.Errorf(cluster.ReasonLimit, "the request body is larger than %d bytes; send less at once", limit)
	e.Field = "body"
	return e
}

func notServed(r *http.Request) *cluster.Error {
	return cluster.NotFound("nothing is served at %s %s (see /openapi.yaml)", r.Method, r.URL.Path)
}
