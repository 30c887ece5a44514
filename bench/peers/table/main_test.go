package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	t.Parallel()

	t.Run("shows the median of the rounds", func(t *testing.T) {
		t.Parallel()
		r, err := read(strings.NewReader(`goos: linux
cpu: A processor
BenchmarkLatency
BenchmarkLatency/round=1/peer=river/settings=tuned-queue-2         	       1	1000 ns/op	      300 p50-us	        900 p99-us
BenchmarkLatency/round=2/peer=river/settings=tuned-queue-2         	       1	1000 ns/op	      100 p50-us	        700 p99-us
BenchmarkLatency/round=3/peer=river/settings=tuned-queue-2         	       1	1000 ns/op	      200 p50-us
BenchmarkLatency/round=1/peer=outbox/settings=defaults-2           	       1	1000 ns/op	      400.6 p50-us
BenchmarkDrain/round=1/peer=outbox/settings=defaults-2             	       1	1000 ns/op	    50000 events/s
PASS
`))
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		if err := r.write(&got); err != nil {
			t.Fatal(err)
		}
		want := `goos: linux, cpu: A processor

### Latency

| peer, settings | p50-us | p99-us | rounds |
|---|--:|--:|--:|
| river, tuned-queue | 200 | 800 | 3 |
| outbox, defaults | 401 | – | 1 |

### Drain

| peer, settings | events/s | rounds |
|---|--:|--:|
| outbox, defaults | 50000 | 1 |
`
		if got.String() != want {
			t.Errorf("got\n%s\nwant\n%s", got.String(), want)
		}
	})
	t.Run("refuses what it does not understand", func(t *testing.T) {
		t.Parallel()
		if _, err := read(strings.NewReader("BenchmarkDrain/round=1/peer=a/settings=b-2 1 many events/s\n")); err == nil {
			t.Error("no error")
		}
	})
}
