// Package api is the wire vocabulary of Treadle: the JSON objects of openapi.yaml as plain Go structs.
//
// It holds no logic beyond encoding. The log stores events in exactly this form, so the bytes that a reader of an event
// stream receives are the bytes that were stored. Free JSON (arguments, outputs) stays [encoding/json.RawMessage] from end
// to end, so that no number is ever rounded.
package api
