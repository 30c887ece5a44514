package main

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestSecondSignal(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		after []time.Duration // since the signal before
		stops string
	}{
		"one stops in order":                                    {nil, "in order"},
		"one that comes with it is the first":                   {[]time.Duration{0}, "in order"},
		"so are several":                                        {[]time.Duration{0, sameSignal / 2, sameSignal / 4}, "in order"},
		"one that comes later stops at once":                    {[]time.Duration{sameSignal}, "at once"},
		"so does a third, however close the second was":         {[]time.Duration{sameSignal / 2, sameSignal / 2}, "at once"},
		"and one that comes after the first has been forgotten": {[]time.Duration{time.Hour}, "at once"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal, 2)
				stops := "not"
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					heed(signals, func() { stops = "in order" }, func() { stops = "at once" })
				}()
				signals <- syscall.SIGTERM
				for _, d := range tt.after {
					time.Sleep(d) // of the bubble's clock
					signals <- syscall.SIGINT
					synctest.Wait()
				}
				close(signals)
				<-ended
				if stops != tt.stops {
					t.Errorf("stops %s, want %s", stops, tt.stops)
				}
			})
		})
	}
}
