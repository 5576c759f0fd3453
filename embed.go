package treadle

import _ "embed" // for the contract

// openAPI is the contract, served at /openapi.yaml.
//
//go:embed openapi.yaml
var openAPI []byte
