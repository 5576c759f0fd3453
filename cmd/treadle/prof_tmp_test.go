package main

import (
	"testing"
	"time"
)

func TestProfTmp(t *testing.T) {
	start := time.Now()
	buildHistory(t, t.TempDir(), 600, 10)
	t.Log(time.Since(start))
}
