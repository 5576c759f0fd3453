// Package sessions is the domain of Treadle: sessions, turns, tool calls, and the loop that drives a turn.
//
// # A session is its log
//
// Everything that happens to a session is a fact in its [Log]. [State] is what the facts add up to, by a pure fold. A command –
// start a turn, submit a result, claim a call, cancel – is a decision: a function from a State to one [Record], or to a refusal.
// The record is appended if no other fact came first; if one did, it is folded in and the decision is made again. So of two tabs,
// two replicas or two tries exactly one wins, and the other learns it. Nothing waits in memory for a particular machine:
//
//	page            handlers          Service                Log                 run (some replica)
//	 │ POST turn ──────►│── StartTurn ──►│── turn_started ──────►│── job ───────────────►│
//	 │                  │                │                       │◄── turn_owned ────────│ its Seq is the run's term
//	 │◄═ SSE ═══════════╪════════════════╪══ Follow ◄════════════│◄── text deltas ───────│ one model call
//	 │                  │                │                       │◄── message, tool_call │ waits: follows its own log
//	 │ POST result ────►│─ SubmitResult ►│── tool_result ───────►│══ Follow ════════════►│ wakes
//	 │                  │                │                       │◄── message,           │
//	 │                  │                │                       │    turn_completed ────│
//
// # Files
//
// log.go and model.go hold the interfaces that others implement. state.go folds; draft.go builds a record; decide_*.go and next.go
// decide, without I/O or clock. service.go has the append-or-decide-again cycle and cache.go the folded states; session.go, turn.go
// and call.go are the commands and queries, lookup.go reads what State does not hold. run.go drives a turn, step.go makes a model
// call, delta.go its deltas, history.go its prompt, which histories.go keeps between turns. stream.go and view.go are the readers' side, cursor.go their positions.
//
// # A turn
//
// Whoever receives a started turn appends turn_owned: the Seq of that fact is the term under which it writes. A later owner has a
// later term, and readers drop deltas of any other than the last; facts of a lost owner fail on the log's comparison. The owner then
// repeats: fold what came, ask [State] for the next action, do it. A new owner finds the same State and goes on: it voids an
// unfinished answer and asks the model again, and offers pending calls again.
package sessions
