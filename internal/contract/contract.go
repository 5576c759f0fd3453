// Package contract holds every answer that a test sees against openapi.yaml. Only tests import it.
//
// A test asks [Load] for the contract and makes its requests with [Contract.Client]. Whatever comes back is checked: the
// status must be documented for the operation, headers and body must satisfy their schemas, the members of objects must all
// be declared, and event streams are checked frame by frame as they pass. A package whose tests are meant to see the whole
// contract runs them by [Main], which then fails for everything that is documented and was never seen.
package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/go-chi/chi/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// Contract is openapi.yaml, and what was seen of it. Safe for concurrent use.
type Contract struct {
	doc     *openapi3.T
	router  routers.Router
	schemas map[string]*jsonschema.Schema
	// events finds the schema of an event type.
	events map[string]*jsonschema.Schema
	// Problems are the codes and how each looks.
	Problems map[string]Problem

	mu   sync.Mutex
	seen map[string]bool
}

// Problem is an entry of x-problem-codes.
type Problem struct {
	Status int    `json:"status"`
	Title  string `json:"title"`
}

// Operation is one operation of the contract.
type Operation struct {
	ID, Method, Path string
	// Statuses are the documented ones, in order.
	Statuses []int
	// Body is the schema of the request body; nil without one.
	Body *openapi3.Schema
	// Parameters are the names of the query parameters.
	Parameters []string
}

var load = sync.OnceValues(func() (*Contract, error) {
	raw, err := read()
	if err != nil {
		return nil, err
	}
	return parse(raw)
})

// Load returns the contract of this module; one value for the whole process.
func Load(tb testing.TB) *Contract {
	tb.Helper()
	c, err := load()
	if err != nil {
		tb.Fatalf("loading the contract: %v", err)
	}
	return c
}

// read finds openapi.yaml beside go.mod: tests run in their package's directory.
func read() ([]byte, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return os.ReadFile(filepath.Join(dir, "openapi.yaml"))
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return nil, fmt.Errorf("no go.mod above the working directory")
		}
		dir = parent
	}
}

func parse(raw []byte) (*Contract, error) {
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	if err != nil {
		return nil, err
	}
	doc.Servers = nil                    // "/" confuses the router, and means nothing else
	router, err := legacy.NewRouter(doc) // which validates the document
	if err != nil {
		return nil, err
	}
	c := &Contract{doc: doc, router: router, seen: map[string]bool{}}
	if err := c.compile(raw); err != nil {
		return nil, err
	}
	codes, err := json.Marshal(doc.Extensions["x-problem-codes"])
	if err != nil {
		return nil, err
	}
	return c, json.Unmarshal(codes, &c.Problems)
}

// compile compiles all schemas once, where kin-openapi would do so for each value.
func (c *Contract) compile(raw []byte) error {
	var tree map[string]any
	if err := yaml.Unmarshal(raw, &tree); err != nil {
		return err
	}
	components := tree["components"].(map[string]any)["schemas"].(map[string]any)
	closeObjects(components)
	encoded, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	resource, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	const url = "https://treadle.invalid/openapi.json"
	if err := compiler.AddResource(url, resource); err != nil {
		return err
	}
	c.schemas, c.events = map[string]*jsonschema.Schema{}, map[string]*jsonschema.Schema{}
	for name := range components {
		ref := "#/components/schemas/" + name
		if c.schemas[ref], err = compiler.Compile(url + ref); err != nil {
			return err
		}
	}
	for event, ref := range c.doc.Components.Schemas["Event"].Value.Discriminator.Mapping {
		if c.events[event] = c.schemas[ref.Ref]; c.events[event] == nil {
			return fmt.Errorf("event type %s is mapped to %q, which is no schema", event, ref.Ref)
		}
	}
	return nil
}

// Operations lists the operations, sorted by id.
func (c *Contract) Operations() []Operation {
	var ops []Operation
	for path, item := range c.doc.Paths.Map() {
		for method, operation := range item.Operations() {
			op := Operation{ID: operation.OperationID, Method: method, Path: path}
			for status := range operation.Responses.Map() {
				n, err := strconv.Atoi(status)
				if err != nil {
					panic("openapi.yaml: " + op.ID + ": a status must be written out: " + status)
				}
				op.Statuses = append(op.Statuses, n)
			}
			slices.Sort(op.Statuses)
			if operation.RequestBody != nil {
				op.Body = operation.RequestBody.Value.Content["application/json"].Schema.Value
			}
			for _, p := range operation.Parameters {
				if p.Value.In == openapi3.ParameterInQuery {
					op.Parameters = append(op.Parameters, p.Value.Name)
				}
			}
			ops = append(ops, op)
		}
	}
	slices.SortFunc(ops, func(a, b Operation) int { return bytes.Compare([]byte(a.ID), []byte(b.ID)) })
	return ops
}

// CheckRoutes fails the test unless the routes are exactly the contract's operations.
func (c *Contract) CheckRoutes(tb testing.TB, routes chi.Routes) {
	tb.Helper()
	documented := map[string]bool{}
	for _, op := range c.Operations() {
		documented[op.Method+" "+op.Path] = true
	}
	err := chi.Walk(routes, func(method, route string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		if !documented[method+" "+route] {
			tb.Errorf("%s %s is served and not documented", method, route)
		}
		delete(documented, method+" "+route)
		return nil
	})
	if err != nil {
		tb.Error(err)
	}
	for op := range documented {
		tb.Errorf("%s is documented and not served", op)
	}
}

func (c *Contract) see(kind, what string) {
	c.mu.Lock()
	c.seen[kind+" "+what] = true
	c.mu.Unlock()
}

// Unseen lists what is documented and was not seen: operations with their statuses, problem codes and event types.
func (c *Contract) Unseen() []string {
	var documented []string
	for _, op := range c.Operations() {
		for _, status := range op.Statuses {
			documented = append(documented, fmt.Sprintf("status %s %d", op.ID, status))
		}
	}
	for code := range c.Problems {
		documented = append(documented, "code "+code)
	}
	for event := range c.events {
		documented = append(documented, "event "+event)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	documented = slices.DeleteFunc(documented, func(what string) bool { return c.seen[what] })
	slices.Sort(documented)
	return documented
}
