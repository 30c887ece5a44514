// Package report shows what package measure has measured: as a table on a terminal, as Markdown with charts beside it, and as one
// page of HTML.
package report

import (
	"github.com/seed-9a365b49/outbox/internal/measure"
	"github.com/seed-9a365b49/outbox/internal/measure/chart"
)

// Report is a run.
type Report struct {
	Results measure.Results
	Command string // that was run
}

// section is one question, with its answer.
type section struct {
	title   string
	how     string // to read the table
	verdict string // in one sentence; empty where there is nothing to compare
	head    []string
	rows    [][]string
	notes   []string    // to single rows
	chart   *namedChart // nil: none
}

type namedChart struct {
	name string // of a file, without its ending
	chart.Lines
}

// sections are the questions that were asked.
func (r Report) sections() (sections []section) {
	for _, s := range []section{
		latency(r.Results.Latency), drain(r.Results.Drain), options(r.Results.Options), publish(r.Results.Publish), batches(r.Results.Batch),
		idle(r.Results.Idle), memory(r.Results.Memory),
	} {
		if len(s.rows) > 0 {
			sections = append(sections, s)
		}
	}
	return sections
}

// caution is how to take the figures.
const caution = "Absolute figures depend on the machine, its disk and what else it does. What travels is the ratio to the floor: " +
	"a bare program with the same effect, measured in the same run, taking turns."
