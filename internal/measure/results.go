package measure

// Results are what a run has measured. In JSON, durations are in microseconds and rates in events a second.
type Results struct {
	Environment Environment     `json:"environment"`
	Latency     []Latency       `json:"latency,omitempty"`
	Drain       []Drained       `json:"drain,omitempty"`
	Options     []OptionDrained `json:"options,omitempty"`
	Publish     []Published     `json:"publish,omitempty"`
	Batch       []Batched       `json:"batch,omitempty"`
	Idle        *Idled          `json:"idle,omitempty"`
	Memory      []Memory        `json:"memory,omitempty"`
}

// Memory is the resident size of a worker with a long backlog, in MiB.
type Memory struct {
	Events     int     `json:"events"`
	Aggregates int     `json:"aggregates"`
	Blocked    float64 `json:"blocked_mib"` // behind handlers that do not return
	Peak       float64 `json:"peak_mib"`    // the most, the following drain included
}
