package chart

// source is the template of a chart. Its classes are its own, so that several charts and a page can stand together. Marks differ by kind:
// a disc, a square, a diamond, and the same hollow.
const source = `<svg xmlns="http://www.w3.org/2000/svg" class="outbox-chart" viewBox="0 0 {{.Width}} {{.Height}}" role="img" aria-label="{{escape .Title}}">
<title>{{escape .Title}}</title>
<desc>{{escape .Description}}</desc>
<style>
.outbox-chart{--ink:#1f2328;--dim:#59636e;--grid:#d8dee4;--paper:#ffffff;--c0:#0b63ce;--c1:#6e7781;--c2:#b35900;--c3:#8a8f96;--c4:#117a3d;--c5:#a0a6ad;max-width:100%;height:auto;font:13px system-ui,-apple-system,"Segoe UI",sans-serif}
@media (prefers-color-scheme:dark){.outbox-chart{--ink:#e6edf3;--dim:#9198a1;--grid:#30363d;--paper:#0d1117;--c0:#6cb0ff;--c1:#9aa4af;--c2:#f0a35e;--c3:#868e97;--c4:#5fd38d;--c5:#737b84}}
.outbox-chart .paper{fill:var(--paper)}
.outbox-chart text{fill:var(--dim)}
.outbox-chart .ink{fill:var(--ink)}
.outbox-chart .title{fill:var(--ink);font-size:16px;font-weight:600}
.outbox-chart .grid{stroke:var(--grid);stroke-width:1}
.outbox-chart .line{fill:none;stroke-width:2;stroke-linejoin:round}
.outbox-chart .k0{stroke:var(--c0);fill:var(--c0)}
.outbox-chart .k1{stroke:var(--c1);fill:var(--paper)}
.outbox-chart .k2{stroke:var(--c2);fill:var(--c2)}
.outbox-chart .k3{stroke:var(--c3);fill:var(--paper)}
.outbox-chart .k4{stroke:var(--c4);fill:var(--c4)}
.outbox-chart .k5{stroke:var(--c5);fill:var(--paper)}
.outbox-chart .line.k1,.outbox-chart .line.k3,.outbox-chart .line.k5{stroke-dasharray:5 4}
.outbox-chart .line{fill:none}
</style>
{{- define "mark"}}
{{- if or (eq .Kind 0) (eq .Kind 1)}}<circle class="k{{.Kind}}" cx="{{px .X}}" cy="{{px .Y}}" r="3.5" stroke-width="1.5">
{{- else if or (eq .Kind 2) (eq .Kind 3)}}<rect class="k{{.Kind}}" x="{{px (add .X -3.5)}}" y="{{px (add .Y -3.5)}}" width="7" height="7" stroke-width="1.5">
{{- else}}<path class="k{{.Kind}}" d="M{{px .X}} {{px (add .Y -4.5)}}l4.5 4.5l-4.5 4.5l-4.5 -4.5z" stroke-width="1.5">
{{- end}}{{if .What}}<title>{{escape .What}}</title>{{end}}
{{- if or (eq .Kind 0) (eq .Kind 1)}}</circle>{{else if or (eq .Kind 2) (eq .Kind 3)}}</rect>{{else}}</path>{{end}}
{{- end}}
<rect class="paper" width="{{.Width}}" height="{{.Height}}" rx="6"/>
<text class="title" x="16" y="26">{{escape .Title}}</text>
{{- range .Curves}}
<line class="line k{{.Kind}}" x1="{{px .LegendX}}" y1="{{px (add .LegendY 6)}}" x2="{{px (add .LegendX 28)}}" y2="{{px (add .LegendY 6)}}"/>
{{template "mark" .Legend}}
<text class="ink" x="{{px (add .LegendX 36)}}" y="{{px (add .LegendY 10)}}">{{escape .Name}}</text>
{{- end}}
{{- $area := .Area}}
{{- range .YTicks}}
<line class="grid" x1="{{px $area.Left}}" y1="{{px .At}}" x2="{{px $area.Right}}" y2="{{px .At}}"/>
<text x="{{px (add $area.Left -8)}}" y="{{px (add .At 4)}}" text-anchor="end">{{escape .Label}}</text>
{{- end}}
{{- range .XTicks}}
<line class="grid" x1="{{px .At}}" y1="{{px $area.Bottom}}" x2="{{px .At}}" y2="{{px (add $area.Bottom 5)}}"/>
<text x="{{px .At}}" y="{{px (add $area.Bottom 19)}}" text-anchor="middle">{{escape .Label}}</text>
{{- end}}
<text x="{{px $area.CenterX}}" y="{{px (add $area.Bottom 40)}}" text-anchor="middle">{{escape .X.Label}}</text>
<text transform="translate(18 {{px $area.CenterY}}) rotate(-90)" text-anchor="middle">{{escape .Y.Label}}</text>
{{- range .Curves}}
<path class="line k{{.Kind}}" d="{{.Path}}"/>
{{- range .Marks}}
{{template "mark" .}}
{{- end}}
{{- end}}
</svg>
`
