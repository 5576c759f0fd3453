// Package sse is the wire of Server-Sent Events: a [Writer] for the server's side of a stream and a [Reader] for the
// client's, both by the rules of https://html.spec.whatwg.org/multipage/server-sent-events.html.
//
// A stream is opened by [NewWriter], which sends the headers at once, and is written in batches:
//
//	w, err := sse.NewWriter(rw, sse.Options{})
//	if err != nil {
//		return err // nothing was sent: an ordinary error response is still possible
//	}
//	defer w.Close()
//	for batch := range batches { // or a heartbeat, when nothing came for a while
//		for _, ev := range batch {
//			w.Event(ev.ID, ev.Type, ev.Data)
//		}
//		if err := w.Flush(); err != nil {
//			return err // the reader is gone or too slow; it resumes from its Last-Event-ID
//		}
//	}
//
// Four promises hold for every stream:
//
//   - No value can forge a field. Ids and event types with a line break are refused; a line break within data (LF, CR
//     or CRLF) starts another data line, and the reader sees LF in its place. U+2028 and its like are no line breaks.
//   - A stalled reader is dropped. Each batch must be taken within Options.WriteTimeout; between batches no deadline is in
//     force, so that neither the WriteTimeout nor the ReadTimeout of an [http.Server] ends a stream.
//   - Nothing is held back. Each Flush is one write and one flush, and the headers tell proxies not to buffer or compress.
//   - An idle stream holds a buffer of at most 1 KiB, from its first heartbeat on.
//
// The package reaches the connection only through [http.ResponseController], so every middleware that wraps a
// ResponseWriter must have an Unwrap method; one that has not is found out by NewWriter.
package sse
