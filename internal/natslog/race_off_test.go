//go:build !race

package natslog_test

// raceEnabled tells whether the race detector slows everything down.
const raceEnabled = false
