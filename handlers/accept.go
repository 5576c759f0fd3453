package handlers

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// The media types of answers.
const (
	typeJSON   = "application/json"
	typeStream = "text/event-stream"
)

// negotiate answers with JSON or with an event stream, whichever the client likes better; preferred if it likes both the same.
func (h *handler) negotiate(preferred string, json, stream http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		accept := strings.Join(r.Header.Values("Accept"), ",")
		likesJSON, likesStream := quality(accept, typeJSON), quality(accept, typeStream)
		switch {
		case likesJSON == 0 && likesStream == 0:
			h.fail(w, r, refuse(CodeNotAcceptable, "this is there as "+typeJSON+" and as "+typeStream))
		case likesStream > likesJSON, likesStream == likesJSON && preferred == typeStream:
			stream(w, r)
		default:
			json(w, r)
		}
	}
}

// quality returns how much an Accept header likes a media type, from 0 to 1: what its most specific matching range says.
func quality(accept, mediaType string) float64 {
	if strings.TrimSpace(accept) == "" {
		return 1
	}
	best, specificity := 0.0, 0
	kind, _, _ := strings.Cut(mediaType, "/")
	for entry := range strings.SplitSeq(accept, ",") {
		found, params, err := mime.ParseMediaType(entry)
		if err != nil {
			continue
		}
		s := 0
		switch found {
		case mediaType:
			s = 3
		case kind + "/*":
			s = 2
		case "*/*":
			s = 1
		}
		if s <= specificity {
			continue
		}
		best, specificity = 1, s
		if q, ok := params["q"]; ok {
			if best, err = strconv.ParseFloat(q, 64); err != nil || best < 0 || best > 1 {
				best = 0
			}
		}
	}
	return best
}
