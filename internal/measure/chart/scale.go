package chart

import "math"

// scale places the values of an axis between two pixels.
type scale struct {
	axis     Axis
	low      float64
	high     float64
	from, to float64
}

// mostTicks is how many labels an axis chooses at most, about.
const mostTicks = 6

// newScale makes room for all values, and for zero unless the axis is logarithmic.
func newScale(axis Axis, values []float64, from, to float64) scale {
	s := scale{axis: axis, low: math.Inf(1), high: math.Inf(-1), from: from, to: to}
	for _, v := range values {
		if math.IsInf(v, 0) || math.IsNaN(v) || axis.Log && v <= 0 {
			continue
		}
		s.low, s.high = min(s.low, v), max(s.high, v)
	}
	for _, t := range axis.Ticks {
		s.low, s.high = min(s.low, t.At), max(s.high, t.At)
	}
	if s.low > s.high { // no values
		s.low, s.high = 1, 10
	}
	switch {
	case axis.Log && len(axis.Ticks) == 0:
		s.low, s.high = math.Pow(10, math.Floor(math.Log10(s.low))), math.Pow(10, math.Ceil(math.Log10(s.high)))
	case !axis.Log && len(axis.Ticks) == 0:
		s.low = min(s.low, 0)
		step := s.step()
		s.high = math.Ceil(s.high/step) * step
	}
	if s.low == s.high {
		s.high = s.low + 1
		if axis.Log {
			s.high = s.low * 10
		}
	}
	return s
}

// step is the distance between the ticks of a linear axis: 1, 2 or 5 times a power of ten.
func (s scale) step() float64 {
	raw := (s.high - s.low) / mostTicks
	if raw <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5} {
		if raw <= m*power {
			return m * power
		}
	}
	return 10 * power
}

func (s scale) holds(v float64) bool {
	return v >= s.low && v <= s.high // false for NaN
}

func (s scale) place(v float64) float64 {
	low, high := s.low, s.high
	if s.axis.Log {
		v, low, high = math.Log10(v), math.Log10(low), math.Log10(high)
	}
	return s.from + (v-low)/(high-low)*(s.to-s.from)
}

func (s scale) ticks() (placed []placedTick) {
	if len(s.axis.Ticks) > 0 {
		for _, t := range s.axis.Ticks {
			placed = append(placed, placedTick{s.place(t.At), t.Label})
		}
		return placed
	}
	if s.axis.Log {
		for v := s.low; v <= s.high*1.001; v *= 10 {
			placed = append(placed, placedTick{s.place(v), number(v)})
		}
		return placed
	}
	step := s.step()
	for n := 0; s.low+float64(n)*step <= s.high+step/1000; n++ {
		v := s.low + float64(n)*step
		placed = append(placed, placedTick{s.place(v), number(v)})
	}
	return placed
}
