package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seed-9a365b49/outbox/internal/measure"
)

// micros writes microseconds in the unit that fits.
func micros(us float64) string {
	switch {
	case us >= 9.995e5:
		return fmt.Sprintf("%.2f s", us/1e6)
	case us >= 9995:
		return fmt.Sprintf("%.1f ms", us/1e3)
	case us >= 1000:
		return fmt.Sprintf("%.2f ms", us/1e3)
	}
	return fmt.Sprintf("%.0f µs", us)
}

// times writes a ratio. Of nothing to divide by there is none.
func times(ratio float64) string {
	if ratio == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f ×", ratio)
}

// count writes a whole number with its thousands apart.
func count(n float64) string {
	text := strconv.FormatFloat(n, 'f', 0, 64)
	var b strings.Builder
	for i, digit := range text {
		if i > 0 && (len(text)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// fact is a name with a value.
type fact struct{ Name, Value string }

// facts are what the figures depend on.
func facts(e measure.Environment) []fact {
	machine := fmt.Sprintf("%s; %d cores", e.Machine, e.Cores)
	if e.MemoryGiB > 0 {
		machine += fmt.Sprintf(", %.0f GiB", e.MemoryGiB)
	}
	settings := make([]string, len(e.Settings))
	for i, s := range e.Settings {
		settings[i] = s.Name + " = " + s.Value
	}
	return []fact{
		{"date", e.Time.Format("2 January 2006, 15:04 MST")},
		{"machine", machine},
		{"PostgreSQL", e.Postgres},
		{"round trip", micros(e.RoundTrip)},
		{"settings", strings.Join(settings, ", ")},
		{"Go", e.Go},
		{"outbox", e.Outbox},
	}
}
