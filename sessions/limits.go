package sessions

import "time"

// Limits bound what one session may cost. The zero value of a field means its default.
type Limits struct {
	// MaxSteps is the number of model calls in one turn; default 50. A turn may ask for less.
	MaxSteps int
	// MaxToolFailures is how many calls in a row may be refused before they run (unknown tool, bad arguments) until the turn fails; default 5.
	MaxToolFailures int
	// MaxParallelCalls is how many calls of a session are offered at once; default 16.
	MaxParallelCalls int
	// ToolTimeout is the wait for a result when the tool names none; default 60 s.
	ToolTimeout time.Duration
	// ModelAttempts is how often one step's model call is tried; default 3.
	ModelAttempts int
	// ModelFirstPart and ModelIdle bound a model's silence before its first part and between parts; defaults 120 s and 90 s.
	ModelFirstPart, ModelIdle time.Duration
	// TurnTime bounds the time that a turn spends on model calls; waiting for pages does not count. Default 30 min.
	TurnTime time.Duration
	// MaxAnswerBytes bounds text, reasoning and arguments of one model answer together; default 1 MiB.
	MaxAnswerBytes int
	// MaxInputBytes bounds the text of one turn's input; default 1 MiB.
	MaxInputBytes int
	// MaxTurns is the number of turns that this process runs at once; default 10,000. Further turns wait in the log.
	MaxTurns int
	// MaxStreams is the number of event streams that this process serves at once; default 20,000.
	MaxStreams int
	// MaxTenantStreams is the same for one tenant; default 10,000.
	MaxTenantStreams int
}

// The bounds that are part of the protocol.
const (
	// maxCallsPerStep bounds the calls of one answer: all their events must fit one record.
	maxCallsPerStep = 128
	// maxTakeovers is how many owners in a row may lose a turn without a new message or result before it ends as crash_loop.
	maxTakeovers = 5
	// reofferGrace is the least time that a call has after it was offered again.
	reofferGrace = 15 * time.Second
	// maxTurnKeys is how many Idempotency-Keys of turns a session remembers.
	maxTurnKeys = 512
	// maxMarks bounds the index into a session's log; beyond it every other mark is dropped.
	maxMarks = 512
	// maxProgress is how many progress reports one call takes.
	maxProgress = 1000
	// checkpointEvery is how many facts a session goes on between checkpoints, which are taken at the ends of turns.
	checkpointEvery = 256
)

func (l Limits) withDefaults() Limits {
	setDefault(&l.MaxSteps, 50)
	setDefault(&l.MaxToolFailures, 5)
	setDefault(&l.MaxParallelCalls, 16)
	setDefault(&l.ToolTimeout, time.Minute)
	setDefault(&l.ModelAttempts, 3)
	setDefault(&l.ModelFirstPart, 2*time.Minute)
	setDefault(&l.ModelIdle, 90*time.Second)
	setDefault(&l.TurnTime, 30*time.Minute)
	setDefault(&l.MaxAnswerBytes, 1<<20)
	setDefault(&l.MaxInputBytes, 1<<20)
	setDefault(&l.MaxTurns, 10_000)
	setDefault(&l.MaxStreams, 20_000)
	setDefault(&l.MaxTenantStreams, 10_000)
	return l
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
