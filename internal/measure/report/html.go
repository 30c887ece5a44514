package report

import (
	"html/template"
	"io"
)

// WriteHTML writes one page that needs nothing besides itself.
func (r Report) WriteHTML(w io.Writer) error {
	type shown struct {
		Title, How, Verdict string
		Head                []string
		Rows                [][]string
		Notes               []string
		Chart               template.HTML
	}
	page := struct {
		Command, Caution string
		Facts            []fact
		Sections         []shown
	}{Command: r.Command, Caution: caution, Facts: facts(r.Results.Environment)}
	for _, s := range r.sections() {
		view := shown{Title: s.title, How: s.how, Verdict: s.verdict, Head: s.head, Rows: s.rows, Notes: s.notes}
		if s.chart != nil {
			view.Chart = template.HTML(s.chart.SVG()) // package chart escapes its texts
		}
		page.Sections = append(page.Sections, view)
	}
	return htmlPage.Execute(w, page)
}

var htmlPage = template.Must(template.New("report").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Outbox: measured</title>
<style>
:root{color-scheme:light dark;--ink:#1f2328;--dim:#59636e;--line:#d8dee4;--paper:#fff}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9198a1;--line:#30363d;--paper:#0d1117}}
body{margin:0 auto;max-width:1080px;padding:24px;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1,h2{line-height:1.25}
h2{margin-top:2em}
p.verdict{font-size:1.1em}
p.how,p.caution{color:var(--dim)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:4px 10px;border-bottom:1px solid var(--line);text-align:right;vertical-align:bottom}
th:first-child,td:first-child{padding-left:0;text-align:left}
table.facts td,table.facts th{text-align:left;font-weight:normal;vertical-align:top}
table.facts th{color:var(--dim)}
code{font-family:ui-monospace,monospace}
</style>
<h1>Outbox: measured</h1>
<p>Made by <code>{{.Command}}</code>.</p>
<table class="facts">{{range .Facts}}
<tr><th scope="row">{{.Name}}</th><td>{{.Value}}</td></tr>{{end}}
</table>
<p class="caution">{{.Caution}}</p>
{{- range .Sections}}
<section>
<h2>{{.Title}}</h2>
{{- with .Verdict}}
<p class="verdict">{{.}}</p>{{end}}
{{- with .Chart}}
{{.}}{{end}}
<div class="wide"><table>
<thead><tr>{{range .Head}}<th scope="col">{{.}}</th>{{end}}</tr></thead>
<tbody>{{range .Rows}}
<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>{{end}}
</tbody></table></div>
{{- range .Notes}}
<p>{{.}}</p>{{end}}
<p class="how">{{.How}}</p>
</section>
{{- end}}
</html>
`))
