package scripted

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"
)

type script struct {
	rule  `yaml:",inline"`
	Rules []rule `yaml:"rules"`
}

// rule is a list of answers and the user texts that they are for.
type rule struct {
	Match   string     `yaml:"match"`
	Answers [][]action `yaml:"answers"`
	Repeat  string     `yaml:"repeat"`
}

// action is one thing that happens in an answer: exactly one field is set, Chunk and Every aside.
type action struct {
	Text       *string        `yaml:"text"`
	Chunk      int            `yaml:"chunk"`
	Every      time.Duration  `yaml:"every"`
	Texts      []string       `yaml:"texts"`
	Reasoning  *string        `yaml:"reasoning"`
	Call       *call          `yaml:"call"`
	Delay      *time.Duration `yaml:"delay"`
	Usage      *usage         `yaml:"usage"`
	StopReason *string        `yaml:"stop_reason"`
	Fail       *failure       `yaml:"fail"`
	Truncate   bool           `yaml:"truncate"`
	Block      bool           `yaml:"block"`
	Attempts   [][]action     `yaml:"attempts"`
}

type call struct {
	Tool   string    `yaml:"tool"`
	WireID string    `yaml:"wire_id"`
	Args   yaml.Node `yaml:"args"`
	// args are the bytes that Args stands for.
	args []byte
}

type usage struct {
	InputTokens     *int64 `yaml:"input_tokens"`
	CachedTokens    *int64 `yaml:"cached_tokens"`
	OutputTokens    *int64 `yaml:"output_tokens"`
	ReasoningTokens *int64 `yaml:"reasoning_tokens"`
}

type failure struct {
	Class      string        `yaml:"class"`
	Message    string        `yaml:"message"`
	Retryable  bool          `yaml:"retryable"`
	RetryAfter time.Duration `yaml:"retry_after"`
}

// Load reads the script in the file at path.
func Load(path string) (*Model, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load script: %w", err)
	}
	defer func() { _ = f.Close() }()
	m, err := Parse(f)
	if err != nil {
		return nil, fmt.Errorf("load script %s: %w", path, err)
	}
	m.forgets = true // in a server nobody asks for prompts, and they may be large
	return m, nil
}

// Parse reads a script. It is strict: an error names the place of whatever it does not understand.
func Parse(r io.Reader) (*Model, error) {
	dec := yaml.NewDecoder(r)
	dec.KnownFields(true)
	var s script
	if err := dec.Decode(&s); errors.Is(err, io.EOF) {
		return nil, errors.New("the script is empty")
	} else if err != nil {
		return nil, err
	}
	if err := dec.Decode(new(yaml.Node)); err == nil {
		return nil, errors.New("a script is a single YAML document")
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case (s.Answers == nil) == (s.Rules == nil):
		return nil, errors.New("a script has either answers or rules")
	case s.Rules == nil && s.Match != "", s.Rules != nil && (s.Match != "" || s.Repeat != ""):
		return nil, errors.New("match and repeat belong into each of the rules, or repeat beside answers")
	case s.Rules == nil:
		if err := s.check(); err != nil {
			return nil, err
		}
		return newModel([]rule{s.rule}, true), nil
	}
	for i := range s.Rules {
		if err := s.Rules[i].check(); err != nil {
			return nil, fmt.Errorf("rule %d: %w", i+1, err)
		}
	}
	return newModel(s.Rules, false), nil
}

func (r *rule) check() error {
	if len(r.Answers) == 0 {
		return errors.New("there must be at least one answer")
	}
	if r.Repeat != "" && r.Repeat != "last" {
		return fmt.Errorf("repeat can only be \"last\", not %q", r.Repeat)
	}
	for i, answer := range r.Answers {
		if err := checkActions(answer); err != nil {
			return fmt.Errorf("answer %d: %w", i+1, err)
		}
	}
	return nil
}

func checkActions(actions []action) error {
	for i := range actions {
		err := actions[i].check()
		if err == nil && i < len(actions)-1 && actions[i].final() {
			err = errors.New("nothing can follow what ends the answer")
		}
		if err != nil {
			return fmt.Errorf("action %d: %w", i+1, err)
		}
	}
	return nil
}

// final reports whether the answer always ends with a.
func (a *action) final() bool { return a.Fail != nil || a.Truncate || a.Block }

var (
	stopReasons  = []string{"end", "tool_calls", "max_tokens", "content_filter"}
	failureClass = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

func (a *action) check() error {
	kinds := 0
	for _, set := range []bool{
		a.Text != nil, a.Texts != nil, a.Reasoning != nil, a.Call != nil, a.Delay != nil, a.Usage != nil,
		a.StopReason != nil, a.Fail != nil, a.Truncate, a.Block, a.Attempts != nil,
	} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return fmt.Errorf("want exactly one thing to do, got %d", kinds)
	case a.Chunk < 0 || a.Every < 0 || a.Delay != nil && *a.Delay < 0 || a.Fail != nil && a.Fail.RetryAfter < 0:
		return errors.New("numbers and durations cannot be negative")
	case a.Chunk > 0 && a.Text == nil || a.Every > 0 && a.Chunk == 0:
		return errors.New("chunk needs text, and every needs chunk")
	case a.StopReason != nil && !slices.Contains(stopReasons, *a.StopReason):
		return fmt.Errorf("stop_reason must be one of %q, not %q", stopReasons, *a.StopReason)
	case a.Fail != nil && !failureClass.MatchString(a.Fail.Class):
		return fmt.Errorf("fail needs a class in lower_snake, not %q", a.Fail.Class)
	case a.Call != nil && a.Call.Tool == "":
		return errors.New("a call needs a tool")
	case a.Call != nil:
		var err error
		a.Call.args, err = callArgs(&a.Call.Args)
		return err
	case a.Attempts != nil && len(a.Attempts) == 0:
		return errors.New("there must be at least one attempt")
	}
	for i, attempt := range a.Attempts {
		if err := checkActions(attempt); err != nil {
			return fmt.Errorf("attempt %d: %w", i+1, err)
		}
	}
	return nil
}
