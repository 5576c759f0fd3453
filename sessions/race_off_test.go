//go:build !race

package sessions

// raceEnabled tells whether the race detector slows everything down.
const raceEnabled = false
