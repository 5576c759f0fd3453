package api

import (
	"encoding/json"
	"maps"
)

// Problem is an RFC 9457 problem detail, the body of every error answer.
type Problem struct {
	// Type is /problems/<kebab-case of Code>.
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	// Code is stable and UPPER_SNAKE: what programs switch on.
	Code string `json:"code"`
	// Detail says what was wrong with this request and what to do.
	Detail string `json:"detail"`
	// Instance names this occurrence: the request's id, which the server's log repeats.
	Instance string `json:"instance,omitempty"`
	// Facts are further members, such as "turn_id", "limit", "pointer" or "tool_call".
	Facts map[string]any `json:"-"`
}

// MarshalJSON puts the facts beside the other members.
func (p Problem) MarshalJSON() ([]byte, error) {
	type plain Problem
	if len(p.Facts) == 0 {
		return Marshal(plain(p))
	}
	m := maps.Clone(p.Facts)
	m["type"], m["title"], m["status"], m["code"], m["detail"] = p.Type, p.Title, p.Status, p.Code, p.Detail
	if p.Instance != "" {
		m["instance"] = p.Instance
	}
	return Marshal(m)
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (p *Problem) UnmarshalJSON(b []byte) error {
	type plain Problem
	if err := json.Unmarshal(b, (*plain)(p)); err != nil {
		return err
	}
	if err := json.Unmarshal(b, &p.Facts); err != nil {
		return err
	}
	for _, k := range []string{"type", "title", "status", "code", "detail", "instance"} {
		delete(p.Facts, k)
	}
	return nil
}
