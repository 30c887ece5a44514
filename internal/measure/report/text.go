package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// WriteText writes tables for a terminal.
func (r Report) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range facts(r.Results.Environment) {
		fmt.Fprintf(table, "%s\t%s\n", f.Name, f.Value)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, s := range r.sections() {
		if _, err := fmt.Fprintf(w, "\n%s\n", strings.ToUpper(s.title)); err != nil {
			return err
		}
		if err := s.writeText(w); err != nil {
			return err
		}
		for _, line := range append(s.notes, s.verdict) {
			if line == "" {
				continue
			}
			if _, err := fmt.Fprintf(w, "%s\n", line); err != nil {
				return err
			}
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", caution)
	return err
}

// writeText writes the table, the first column to the left and figures to the right.
func (s section) writeText(w io.Writer) error {
	widths := make([]int, len(s.head))
	lines := append([][]string{s.head}, s.rows...)
	for _, line := range lines {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range lines {
		var b strings.Builder
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString(cell + pad)
				continue
			}
			b.WriteString("  " + pad + cell)
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}
