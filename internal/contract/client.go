package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Client returns a client whose answers are checked. A violation is an error of the test, and the answer is given all the same.
// Bodies must be read before the test ends.
func (c *Contract) Client(tb testing.TB) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     c.Transport(tb, transport),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Transport checks what next brings back.
func (c *Contract) Transport(tb testing.TB, next http.RoundTripper) http.RoundTripper {
	return transport{c, tb, next}
}

type transport struct {
	*Contract
	tb   testing.TB
	next http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	complain := func(err error) { t.tb.Errorf("contract: %s %s: %d: %v", r.Method, r.URL.Path, resp.StatusCode, err) }
	if err := t.check(r, resp, complain); err != nil {
		complain(err)
	}
	return resp, nil
}

// check looks at everything but the body of a stream, which it only prepares to be looked at.
func (c *Contract) check(r *http.Request, resp *http.Response, complain func(error)) error {
	if resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Referrer-Policy") != "no-referrer" {
		return errors.New("a security header is missing")
	}
	routed := r
	if r.Method == http.MethodHead {
		routed = r.Clone(r.Context())
		routed.Method = http.MethodGet
	}
	route, params, err := c.router.FindRoute(routed)
	if err != nil || strings.HasSuffix(r.URL.Path, "/") { // which the contract's router overlooks
		return c.checkUnrouted(r, resp)
	}
	// kin-openapi knows the rules for statuses and headers; bodies are cheaper with schemas that are compiled once.
	err = openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: routed, PathParams: params, Route: route},
		Status:                 resp.StatusCode,
		Header:                 resp.Header,
		Options:                &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: true},
	})
	if err != nil {
		return err
	}
	c.see("status", route.Operation.OperationID+" "+strconv.Itoa(resp.StatusCode))
	content := route.Operation.Responses.Status(resp.StatusCode).Value.Content
	if len(content) == 0 {
		return expectEmpty(resp)
	}
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return err
	}
	declared := content[mediaType]
	switch {
	case declared == nil:
		return fmt.Errorf("content type %s is not documented", mediaType)
	case r.Method == http.MethodHead:
		return expectEmpty(resp)
	case mediaType == "text/event-stream":
		resp.Body = &streamBody{ReadCloser: resp.Body, contract: c, complain: complain}
		return checkStreamHeader(resp.Header)
	case declared.Schema == nil:
		return nil
	}
	return c.checkBody(resp, declared.Schema)
}

// checkUnrouted takes what belongs to no operation: preflights, and problems about paths and methods.
func (c *Contract) checkUnrouted(r *http.Request, resp *http.Response) error {
	if r.Method == http.MethodOptions && resp.StatusCode == http.StatusNoContent {
		return expectEmpty(resp)
	}
	if !slices.Contains([]int{http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed}, resp.StatusCode) {
		return errors.New("the request matches no operation, and the status does not say so")
	}
	if (resp.Header.Get("Allow") != "") != (resp.StatusCode == http.StatusMethodNotAllowed) {
		return fmt.Errorf("allow is %q", resp.Header.Get("Allow"))
	}
	if r.Method == http.MethodHead {
		return expectEmpty(resp)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "application/problem+json" {
		return fmt.Errorf("content type is %q", ct)
	}
	return c.checkBody(resp, &openapi3.SchemaRef{Ref: "#/components/schemas/Problem"})
}

func expectEmpty(resp *http.Response) error {
	body, err := io.ReadAll(resp.Body)
	if err == nil && len(body) > 0 {
		err = fmt.Errorf("there is a body of %d bytes", len(body))
	}
	resp.Body = http.NoBody
	return err
}

// checkBody reads the body, checks it, and puts it back.
func (c *Contract) checkBody(resp *http.Response, declared *openapi3.SchemaRef) error {
	if cc := resp.Header.Get("Cache-Control"); cc != "no-store" {
		return fmt.Errorf("cache-control is %q", cc)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("reading the body: %w", err)
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	schema := c.schemas[declared.Ref]
	if schema == nil {
		return fmt.Errorf("the answer's schema %q is not a component", declared.Ref)
	}
	if err := validate(schema, body); err != nil {
		return fmt.Errorf("%w\n%s", err, body)
	}
	if declared.Ref == "#/components/schemas/Problem" {
		return c.checkProblem(resp, body)
	}
	return nil
}

func validate(schema *jsonschema.Schema, body []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// checkProblem holds a problem against x-problem-codes.
func (c *Contract) checkProblem(resp *http.Response, body []byte) error {
	var problem struct {
		Problem
		Code string `json:"code"`
	}
	if err := json.Unmarshal(body, &problem); err != nil {
		return err
	}
	if want := c.Problems[problem.Code]; want != problem.Problem || want.Status != resp.StatusCode {
		return fmt.Errorf("problem %s is %+v, documented as %+v", problem.Code, problem.Problem, want)
	}
	c.see("code", problem.Code)
	return nil
}
