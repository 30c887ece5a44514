// Package chart draws line charts as SVG that stand alone: they follow the reader's light or dark scheme, name every line where it
// is listed, and tell lines apart by marks as well as by colours.
package chart

import (
	"fmt"
	"math"
	"strings"
	"text/template"
)

// Lines is a chart.
type Lines struct {
	Title       string
	Description string // for those who do not see it
	X, Y        Axis
	Series      []Series
}

// Axis is one of the two.
type Axis struct {
	Label string
	// Log spreads the axis by powers of ten. Values must then be greater than zero.
	Log bool
	// Ticks are values to label. Without them the axis chooses.
	Ticks []Tick
}

// Tick is a labelled value.
type Tick struct {
	At    float64
	Label string
}

// Series is a line.
type Series struct {
	Name   string
	Points []Point
}

// Point is one of a line. Points come by rising X.
type Point struct{ X, Y float64 }

// The sizes are in pixels at full size.
const (
	width, height                   = 760, 400
	left, right, top, bottom        = 84, 24, 0, 52
	titleHeight, legendLine         = 40, 20
	legendColumns, legendColumnSize = 3, 236
)

// SVG returns the chart. Points that an axis has no place for are left out.
func (l Lines) SVG() string {
	rows := max((len(l.Series)+legendColumns-1)/legendColumns, 1)
	area := box{left: left, right: width - right, top: titleHeight + float64(rows*legendLine) + 8, bottom: height - bottom}
	x := newScale(l.X, l.values(func(p Point) float64 { return p.X }), area.left, area.right)
	y := newScale(l.Y, l.values(func(p Point) float64 { return p.Y }), area.bottom, area.top)
	d := drawing{Lines: l, Width: width, Height: height, Area: area, XTicks: x.ticks(), YTicks: y.ticks()}
	for i, s := range l.Series {
		d.Curves = append(d.Curves, newCurve(i, rows, s, x, y))
	}
	var b strings.Builder
	if err := page.Execute(&b, d); err != nil {
		panic(err) // a slip in the template: a Builder never fails
	}
	return b.String()
}

func (l Lines) values(of func(Point) float64) (values []float64) {
	for _, s := range l.Series {
		for _, p := range s.Points {
			values = append(values, of(p))
		}
	}
	return values
}

type box struct{ left, right, top, bottom float64 }

func (b box) Left() float64    { return b.left }
func (b box) Right() float64   { return b.right }
func (b box) Top() float64     { return b.top }
func (b box) Bottom() float64  { return b.bottom }
func (b box) CenterX() float64 { return (b.left + b.right) / 2 }
func (b box) CenterY() float64 { return (b.top + b.bottom) / 2 }

// drawing is what the template shows.
type drawing struct {
	Lines
	Width, Height  int
	Area           box
	XTicks, YTicks []placedTick
	Curves         []curve
}

type placedTick struct {
	At    float64
	Label string
}

// kinds is how many lines look different.
const kinds = 6

// curve is a line with its marks and its entry in the legend.
type curve struct {
	Kind             int
	Name             string
	Path             string
	Marks            []mark
	LegendX, LegendY float64
}

// Legend is the mark of the entry.
func (c curve) Legend() mark { return mark{Kind: c.Kind, X: c.LegendX + 14, Y: c.LegendY + 6} }

type mark struct {
	Kind int
	X, Y float64
	What string // shown by a pointer that rests on it
}

// newCurve places line i, its entry in a legend of so many rows, filled column by column.
func newCurve(i, rows int, s Series, x, y scale) curve {
	c := curve{
		Kind: i % kinds, Name: s.Name,
		LegendX: left + float64(i/rows*legendColumnSize), LegendY: titleHeight + float64(i%rows*legendLine),
	}
	var path strings.Builder
	for _, p := range s.Points {
		if !x.holds(p.X) || !y.holds(p.Y) {
			continue
		}
		m := mark{Kind: c.Kind, X: x.place(p.X), Y: y.place(p.Y), What: s.Name + ": " + number(p.Y)}
		command := "L"
		if path.Len() == 0 {
			command = "M"
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", command, m.X, m.Y)
		c.Marks = append(c.Marks, m)
	}
	c.Path = path.String()
	return c
}

// number is a value for people.
func number(v float64) string {
	switch magnitude := math.Abs(v); {
	case magnitude >= 1e6:
		return trim(v/1e6) + "M"
	case magnitude >= 1e4:
		return trim(v/1e3) + "k"
	case magnitude >= 100:
		return fmt.Sprintf("%.0f", v)
	}
	return trim(v)
}

func trim(v float64) string {
	text := fmt.Sprintf("%.2f", v)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}

var page = template.Must(template.New("chart").Funcs(template.FuncMap{
	"escape": template.HTMLEscapeString,
	"px":     func(v float64) string { return fmt.Sprintf("%.1f", v) },
	"add":    func(a, b float64) float64 { return a + b },
}).Parse(source))
