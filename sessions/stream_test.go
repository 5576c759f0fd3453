package sessions_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"treadle/api"
	"treadle/sessions"
)

// C28: after a reload, pending calls are found in the state, in the whole stream and before ready of a live one.
func TestStream_reload(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0]
		whole := f.open(id, sessions.StreamQuery{})
		offered := whole.until(api.TypeToolCall)
		live := f.open(id, sessions.StreamQuery{After: "latest"})
		frames, err := live.Next(f.ctx, time.Second)
		if err != nil || len(frames) != 2 || frames[0].ID != offered.ID || string(frames[0].Data) != string(offered.Data) || frames[1].Type != api.TypeReady {
			t.Errorf("live: %v, %v", types(frames), err)
		}
		state, err := f.Session(f.ctx, tenant, id)
		if err != nil || state.PendingToolCalls[0].ID != call.ID || state.PendingToolCalls[0].Deadline.IsZero() {
			t.Errorf("state: %+v, %v", state, err)
		}
		past := f.open(id, sessions.StreamQuery{LastEventID: state.Cursor, After: "nonsense"})
		past.until(api.TypeReady)
		f.submit(id, call.ID, "1")
		past.until(api.TypeToolResult)
		f.ended(id, turn)
	})
}

// C13: a cursor that is not of this history leads to a reset on a stream and to a refusal on a page.
func TestStream_foreignCursors(t *testing.T) {
	bubble(t, "answers:\n- - text: Done.\n", func(f *fixture) {
		id, other := f.create(), f.create()
		f.ended(id, f.turn(id, "go"))
		state, _ := f.Session(f.ctx, tenant, id)
		foreign, _ := f.Session(f.ctx, tenant, other)
		tag, _, _ := strings.Cut(state.Cursor, "-")
		for _, cursor := range []string{"0", "-1", "abc", strings.Repeat("9", 10_000), "1.5", foreign.Cursor, tag + "-", tag + "-1x", tag + "-0001", tag + "-" + strings.Repeat("9", 19), tag + "-99999999000"} {
			r := f.open(id, sessions.StreamQuery{LastEventID: cursor})
			frames, err := r.Next(f.ctx, time.Second)
			if err != nil || frames[0].Type != api.TypeReset {
				t.Fatalf("%.20s: %v, %v", cursor, types(frames), err)
			}
			r.until(api.TypeTurnCompleted)
			_, err = f.EventPage(f.ctx, tenant, id, cursor, 10, 0)
			f.refused(err, sessions.CodeCursorInvalid)
		}
		r := f.open(id, sessions.StreamQuery{After: tag + "-0"})
		r.until(api.TypeReady)
		r.until(api.TypeSessionCreated)
	})
}

// A reader may stop and resume between any two events, those of one record included.
func TestStream_resumeAnywhere(t *testing.T) {
	bubble(t, "answers:\n- - text: A.\n  - call: {tool: a}\n  - call: {tool: nope}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		f.submit(id, f.pending(id, 1)[0].ID, "1")
		f.ended(id, turn)
		items := f.pages(id)
		for i, item := range items {
			r := f.open(id, sessions.StreamQuery{LastEventID: item.ID})
			var got []string
			for _, typ := range r.rest() {
				if !control[typ] {
					got = append(got, typ)
				}
			}
			r.Close()
			var want []string
			for _, later := range items[i+1:] {
				want = append(want, api.EventType(later.Event))
			}
			if !slices.Equal(got, want) {
				t.Errorf("after event %d: got %v, want %v", i, got, want)
			}
		}
	})
}

// The reader is told once that it has caught up, after what was stored and before what is live, wherever it begins.
func TestStream_caughtUp(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		call := f.pending(id, 1)[0]
		state, err := f.Session(f.ctx, tenant, id)
		if err != nil {
			t.Fatal(err)
		}
		items := f.pages(id)
		caughtUp := func(frame sessions.Frame) bool {
			return frame.Type == api.TypeReady && strings.Contains(string(frame.Data), `"caught_up":true`)
		}
		var readers []*reader
		for _, q := range []sessions.StreamQuery{{}, {After: "latest"}, {After: state.Cursor}, {After: items[1].ID}, {After: items[len(items)-2].ID}, {After: "nonsense"}} {
			readers = append(readers, f.open(id, q))
		}
		for i, r := range readers {
			r.rest()
			if n := slices.IndexFunc(r.frames, caughtUp); n != len(r.frames)-1 {
				t.Errorf("reader %d has caught up at frame %d of %v", i, n, types(r.frames))
			}
		}
		f.submit(id, call.ID, "1")
		f.ended(id, turn)
		for i, r := range readers {
			seen := len(r.frames)
			r.rest()
			if len(r.frames) == seen || slices.ContainsFunc(r.frames[seen:], caughtUp) {
				t.Errorf("reader %d, live: %v", i, types(r.frames[seen:]))
			}
		}
	})
}

// A page of events is cut by its bytes as well, and nothing is lost at the cut.
func TestEventPage_bytes(t *testing.T) {
	bubble(t, "answers:\n- - call: {tool: a}\n  - call: {tool: a}\n  - call: {tool: a}\n  - call: {tool: a}\n- - text: Done.\n", func(f *fixture) {
		id := f.create(tool("a"))
		turn := f.turn(id, "go")
		for _, c := range f.pending(id, 4) {
			f.submit(id, c.ID, `"`+strings.Repeat("x", 3<<20)+`"`)
		}
		f.ended(id, turn)
		results, pages := 0, 0
		for cursor, more := "", true; more; pages++ {
			page, err := f.EventPage(f.ctx, tenant, id, cursor, 200, 0)
			if err != nil {
				t.Fatal(err)
			}
			size := 0
			for _, item := range page.Events {
				size += len(item.Event)
				if api.EventType(item.Event) == api.TypeToolResult {
					results++
				}
			}
			if size > 9<<20 || len(page.Events) == 0 {
				t.Errorf("a page of %d bytes in %d events", size, len(page.Events))
			}
			cursor, more = page.Cursor, page.More
		}
		if results != 4 || pages < 2 {
			t.Errorf("%d results on %d pages", results, pages)
		}
	})
}
