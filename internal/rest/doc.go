// Package rest is what the listeners of controllers and agents have in common: Connect, gRPC and gRPC-Web for the services
// of a server, REST under /v1/ for their methods with an HTTP annotation in the contract, reflection, gRPC's health check,
// and the OpenAPI document.
//
// It has no handlers of its own: a REST call is translated into a call of the service. Errors of REST are a google.rpc.Status
// in JSON with one naradplane.v1.ErrorDetail, whoever refuses: the service, the translation, or the path that does not exist.
//
//   - A body that is no JSON, or has a field that the request does not, is refused as INVALID: a misspelt field must not
//     be an option that silently does not apply.
//   - A body over the limit is refused as LIMIT with status 413, before it is read when its length is known.
//   - An error with a time to wait has it in the header Retry-After, too.
//
// All of it is safe for concurrent use. Files: handler.go, routes.go, codec.go, errors.go, health.go.
package rest
