package demo

import (
	"fmt"
	"strings"
	"time"
)

// The columns are 79 wide together, so that a line fits a terminal of 80.
const (
	columns = "%8s  %-19s  %-15s  %3s  %s"
	// reasonIndent puts the reason of a failure under its event's type.
	reasonIndent = 23
	width        = 79
)

var heading = "time         " + fmt.Sprintf(columns, "latency", "event", "aggregate", "try", "outcome")

// lines returns an attempt as it is shown: a line, and another with the reason of a failure.
func (a attempt) lines(p paint) []string {
	mark := "  "
	if a.caused {
		mark = "> "
	}
	text := p.dim(a.shown.Format("15:04:05.000")) + " " +
		fmt.Sprintf(columns, a.latencyText(), mark+a.eventType, a.aggregate.short(), fmt.Sprint(a.number), p.outcome(a))
	if a.reason == "" {
		return []string{text}
	}
	return []string{text, p.dim(strings.Repeat(" ", reasonIndent+2) + shorten(a.reason, width-reasonIndent-2))}
}

// latencyText marks the delay of a retry with a plus.
func (a attempt) latencyText() string {
	if a.number > 1 {
		return "+" + short(a.latency)
	}
	return short(a.latency)
}

func (a attempt) outcomeText() string {
	switch {
	case a.outcome == failed:
		return "retry in " + a.retryIn.String()
	case a.outcome == dead:
		return "dead letter"
	case a.waited:
		return "kept in order"
	default:
		return "delivered"
	}
}

// short is a name of an aggregate that a person can compare with another: the first digits of its id will do.
func (a aggregate) short() string { return a.kind + " " + a.id.String()[:6] }

// short returns d with three digits, which take at most seven characters below 1,000 s.
func short(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	switch {
	case ms < 9.995:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 99.95:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0f ms", ms)
	case ms < 9995:
		return fmt.Sprintf("%.2f s", d.Seconds())
	default:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
}

// shorten cuts a text to one line of at most n characters.
func shorten(text string, n int) string {
	runes := []rune(strings.Join(strings.Fields(text), " "))
	if len(runes) <= n {
		return string(runes)
	}
	return string(runes[:n-3]) + "..."
}

// paint colours text, where there are colours.
type paint bool

func (p paint) with(code, text string) string {
	if !p {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p paint) bold(text string) string   { return p.with("1", text) }
func (p paint) dim(text string) string    { return p.with("2", text) }
func (p paint) red(text string) string    { return p.with("31", text) }
func (p paint) green(text string) string  { return p.with("32", text) }
func (p paint) yellow(text string) string { return p.with("33", text) }
func (p paint) cyan(text string) string   { return p.with("36", text) }

func (p paint) outcome(a attempt) string {
	switch text := a.outcomeText(); {
	case a.outcome == failed:
		return p.yellow(text)
	case a.outcome == dead:
		return p.red(text)
	case a.number > 1:
		return p.cyan(text)
	default:
		return p.green(text)
	}
}
