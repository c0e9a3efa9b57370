// Package openapi holds the OpenAPI document of the HTTP API, which is generated from the contract beside it.
package openapi

import _ "embed"

// Document is the document in YAML.
//
//go:embed openapi.yaml
var Document []byte
