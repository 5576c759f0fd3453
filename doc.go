// Package treadle is the whole server as a library: what `treadle serve` runs, for programs that embed it.
//
// A [Server] is made by [New] from one [Config], whose zero value is a server for development: loopback only, no keys, the
// embedded engine in ./treadle-data and the demo model. It works from the moment New returns; its [Server.Handler] can be
// mounted anywhere, or [Server.ListenAndServe] brings the listener with the right limits.
//
//	srv, err := treadle.New(ctx, treadle.Config{DataDir: dir})
//	if err != nil {
//		return err
//	}
//	defer srv.Close()
//	return srv.ListenAndServe()
//
// The example of [New] shows a whole round trip: a client declares a tool, starts a turn, receives the call as an event,
// and posts the result, which lets the turn go on.
//
// # Ending
//
// [Server.Shutdown] is the gentle end: nothing new is taken, event streams end spread over a short time, and what is
// accepted is answered. [Server.Close] is the hard one. Neither loses anything that was acknowledged: a turn that was
// running is resumed by the next server on the same data.
package treadle
