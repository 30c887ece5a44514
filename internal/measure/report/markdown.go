package report

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// chartFolder is where the charts of a Markdown file are, beside it.
const chartFolder = "results"

// WriteMarkdown writes RESULTS.md into folder, and its charts into results below it.
func (r Report) WriteMarkdown(folder string) error {
	charts := filepath.Join(folder, chartFolder)
	if err := os.MkdirAll(charts, 0o755); err != nil {
		return err
	}
	for _, s := range r.sections() {
		if s.chart == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(charts, s.chart.name+".svg"), []byte(s.chart.SVG()), 0o644); err != nil {
			return err
		}
	}
	var text strings.Builder
	r.writeMarkdown(&text)
	return os.WriteFile(filepath.Join(folder, "RESULTS.md"), []byte(text.String()), 0o644)
}

func (r Report) writeMarkdown(w io.Writer) {
	fmt.Fprintf(w, "# Results\n\nMade by `%s`; [doc.go](doc.go) says how to read each figure.\n%s\n\n", r.Command, caution)
	fmt.Fprint(w, "| | |\n|---|---|\n")
	for _, f := range facts(r.Results.Environment) {
		fmt.Fprintf(w, "| %s | %s |\n", f.Name, cell(f.Value))
	}
	for _, s := range r.sections() {
		fmt.Fprintf(w, "\n## %s\n\n", s.title)
		if s.verdict != "" {
			fmt.Fprintf(w, "%s\n\n", s.verdict)
		}
		if s.chart != nil {
			fmt.Fprintf(w, "![%s](%s/%s.svg)\n\n", s.chart.Description, chartFolder, s.chart.name)
		}
		fmt.Fprintf(w, "| %s |\n|---%s|\n", strings.Join(s.head, " | "), strings.Repeat("|--:", len(s.head)-1))
		for _, row := range s.rows {
			cells := make([]string, len(row))
			for i := range row {
				cells[i] = cell(row[i])
			}
			fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
		}
		for _, note := range append(s.notes, s.how) {
			fmt.Fprintf(w, "\n%s\n", note)
		}
	}
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
