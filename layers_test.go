package treadle_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	maxFileLines     = 500
	maxFunctionLines = 80
)

// layers says what each package may import, outside of tests. A pattern that ends in /... stands for that path and
// everything below it, "std" for the standard library except net/http, and "any" for everything outside this module. A
// package of internal/ that is not listed has the rule of "treadle/internal/...".
var layers = map[string][]string{
	"treadle/api":          {"std", "github.com/google/uuid"},
	"treadle/sessions":     {"std", "treadle/api", "github.com/google/uuid", "github.com/kaptinlin/jsonschema", "github.com/go-json-experiment/json/..."},
	"treadle/sse":          {"std", "net/http"},
	"treadle/handlers":     {"std", "net/http", "treadle/api", "treadle/sessions", "treadle/sse", "github.com/go-chi/chi/v5/...", "github.com/google/uuid", "github.com/go-json-experiment/json/..."},
	"treadle/internal/...": {"any", "std", "net/http", "treadle/api", "treadle/sessions"},
	"treadle":              {"any", "std", "net/http", "treadle/api", "treadle/sessions", "treadle/handlers", "treadle/internal/..."},
	"treadle/cmd/treadle":  {"any", "std", "net/http", "treadle", "treadle/sessions", "treadle/internal/auth"},
}

// forTests are the packages that no program may contain.
var forTests = []string{"treadle/internal/memlog", "treadle/internal/logtest", "treadle/internal/contract"}

type listedPackage struct {
	ImportPath string
	Imports    []string
}

func TestLayers(t *testing.T) {
	for _, pkg := range mustList(t) {
		allowed, ok := layers[pkg.ImportPath]
		if !ok && strings.HasPrefix(pkg.ImportPath, "treadle/internal/") {
			allowed, ok = layers["treadle/internal/..."], true
		}
		if !ok {
			t.Errorf("package %s has no layer: add it to the table of AGENTS.md and to this test", pkg.ImportPath)
			continue
		}
		for _, path := range pkg.Imports {
			if slices.Contains(forTests, path) && !slices.Contains(forTests, pkg.ImportPath) {
				t.Errorf("%s must not import %s outside of tests", pkg.ImportPath, path)
			}
			if !slices.ContainsFunc(allowed, func(rule string) bool { return allows(rule, path) }) {
				t.Errorf("%s must not import %s", pkg.ImportPath, path)
			}
		}
	}
}

func allows(rule, path string) bool {
	first, _, _ := strings.Cut(path, "/")
	own, std := first == "treadle", first != "treadle" && !strings.Contains(first, ".")
	switch {
	case rule == "std":
		return std && path != "net/http"
	case rule == "any":
		return !own && !std
	case strings.HasSuffix(rule, "/..."):
		return strings.HasPrefix(path+"/", strings.TrimSuffix(rule, "..."))
	default:
		return path == rule
	}
}

func mustList(tb testing.TB) []listedPackage {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), "go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		tb.Fatalf("go list: %v", err)
	}
	var packages []listedPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg listedPackage
		err := decoder.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			tb.Fatal(err)
		}
		packages = append(packages, pkg)
	}
}

func TestSize(t *testing.T) {
	set := token.NewFileSet()
	for _, path := range mustGoFiles(t) {
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		if n := set.File(file.FileStart).LineCount(); n > maxFileLines {
			t.Errorf("%s has %d lines, more than %d", path, n, maxFileLines)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := set.Position(fn.End()).Line - set.Position(fn.Pos()).Line + 1; n > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, more than %d", set.Position(fn.Pos()), fn.Name, n, maxFunctionLines)
			}
		}
	}
}

// TestUnfinished keeps notes about what is missing out of the code: they belong into the tracker.
func TestUnfinished(t *testing.T) {
	note := regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "XX" + "X"}, "|") + `)\b`)
	set := token.NewFileSet()
	for _, path := range mustGoFiles(t) {
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, group := range file.Comments {
			if word := note.FindString(group.Text()); word != "" {
				t.Errorf("%s: a comment says %s", set.Position(group.Pos()), word)
			}
		}
	}
}

func mustGoFiles(tb testing.TB) []string {
	tb.Helper()
	var files []string
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && path != "."):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go"):
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(fmt.Errorf("walking the source: %w", err))
	}
	return files
}
