// Table makes Markdown tables of the peers' benchmark results: it reads the output of go test -bench on its standard input, and
// prints the median of all rounds of each peer and setting, one table for each benchmark.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

func main() {
	t, err := read(os.Stdin)
	if err == nil {
		err = t.write(os.Stdout)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "table: %v\n", err)
		os.Exit(1)
	}
}

// results are the values of each benchmark, peer and unit, in the order in which they came.
type results struct {
	machine    []string // the lines that say where it ran
	benchmarks []*benchmark
}

type benchmark struct {
	name   string
	units  []string
	peers  []string
	values map[[2]string][]float64 // by peer and unit
}

func read(from io.Reader) (*results, error) {
	r := &results{}
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		switch line := lines.Text(); {
		case strings.HasPrefix(line, "Benchmark"):
			if err := r.add(line); err != nil {
				return nil, fmt.Errorf("read %q: %w", line, err)
			}
		case strings.HasPrefix(line, "goos: "), strings.HasPrefix(line, "goarch: "), strings.HasPrefix(line, "cpu: "):
			r.machine = append(r.machine, line)
		}
	}
	return r, lines.Err()
}

// add takes a line such as "BenchmarkDrain/round=1/peer=river/settings=tuned-2 1 123 ns/op 16100 events/s". Others than
// such lines are not for this table.
func (r *results) add(line string) error {
	fields := strings.Fields(line)
	name, rest, _ := strings.Cut(fields[0], "/round=")
	_, peer, found := strings.Cut(rest, "/peer=")
	if !found || len(fields) < 4 {
		return nil
	}
	if end := strings.LastIndexByte(peer, '-'); end >= 0 { // GOMAXPROCS
		if _, err := strconv.Atoi(peer[end+1:]); err == nil {
			peer = peer[:end]
		}
	}
	peer = strings.Replace(peer, "/settings=", ", ", 1)
	b := r.benchmark(strings.TrimPrefix(name, "Benchmark"))
	if !slices.Contains(b.peers, peer) {
		b.peers = append(b.peers, peer)
	}
	for pair := range slices.Chunk(fields[2:], 2) {
		value, err := strconv.ParseFloat(pair[0], 64)
		if err != nil || len(pair) != 2 {
			return fmt.Errorf("want pairs of value and unit, not %q", pair)
		}
		unit := pair[1]
		if unit == "ns/op" || unit == "B/op" || unit == "allocs/op" { // of a whole measurement
			continue
		}
		if !slices.Contains(b.units, unit) {
			b.units = append(b.units, unit)
		}
		key := [2]string{peer, unit}
		b.values[key] = append(b.values[key], value)
	}
	return nil
}

func (r *results) benchmark(name string) *benchmark {
	for _, b := range r.benchmarks {
		if b.name == name {
			return b
		}
	}
	b := &benchmark{name: name, values: map[[2]string][]float64{}}
	r.benchmarks = append(r.benchmarks, b)
	return b
}

func (r *results) write(to io.Writer) error {
	var text strings.Builder
	fmt.Fprintln(&text, strings.Join(r.machine, ", "))
	for _, b := range r.benchmarks {
		slices.Sort(b.units)
		fmt.Fprintf(&text, "\n### %s\n\n| peer, settings | %s | rounds |\n|---|%s--:|\n",
			b.name, strings.Join(b.units, " | "), strings.Repeat("--:|", len(b.units)))
		for _, peer := range b.peers {
			fmt.Fprintf(&text, "| %s |", peer)
			count := 0
			for _, unit := range b.units {
				values := b.values[[2]string{peer, unit}]
				count = max(count, len(values))
				fmt.Fprintf(&text, " %s |", median(values))
			}
			fmt.Fprintf(&text, " %d |\n", count)
		}
	}
	_, err := io.WriteString(to, text.String())
	return err
}

// median returns the middle of the values as text, a dash where there is none.
func median(values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
	return strconv.FormatFloat(middle, 'f', 0, 64)
}
