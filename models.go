package treadle

import (
	"errors"
	"fmt"

	"treadle/internal/demo"
	"treadle/internal/scripted"
	"treadle/sessions"
)

// newModels makes what the entries name, and tells which one is the default.
func newModels(models []Model) (entries []sessions.ModelEntry, dflt string, err error) {
	dflt = models[0].Name
	for _, m := range models {
		entry := sessions.ModelEntry{Name: m.Name, Provider: m.Provider, Description: m.Description, Model: m.Model}
		if entry.Model == nil {
			if entry.Model, err = newModel(m); err != nil {
				return nil, "", fmt.Errorf("model %q: %w", m.Name, err)
			}
		}
		if entry.Description == "" && m.Model == nil {
			entry.Description = descriptions[m.Provider]
		}
		entries = append(entries, entry)
		if m.Default {
			dflt = m.Name
		}
	}
	return entries, dflt, nil
}

var descriptions = map[string]string{
	"demo":     "A rule-based stand-in for trying things out; it is not a language model.",
	"scripted": "Plays a file, for tests.",
}

func newModel(m Model) (sessions.Model, error) {
	switch m.Provider {
	case "demo":
		return demo.New(demo.Config{}), nil
	case "scripted":
		if m.File == "" {
			return nil, errors.New("provider scripted needs a file")
		}
		return scripted.Load(m.File)
	default:
		return nil, fmt.Errorf("provider %q is unknown: use demo or scripted", m.Provider)
	}
}
