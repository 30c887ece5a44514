// Package poller moves events from the table to the handlers and settles what became of them.
//
//	wake → fetch → lanes → handlers → settle
//
// One loop fetches ([Poller.Run] and loop.go), on a session that holds the ownership of the outbox (ownership.go,
// session.go, scan.go), while a gate tells publishers whether to wake it (gate.go, pace.go). It decides what to read by a
// cursor with a watermark (cursor.go, watermark.go), a timer for due
// retries (retries.go), a sweep that backs both up (sweep.go), and a fallback clock (fallback.go). What it reads waits in
// lanes, one per aggregate (lanes.go); handlers take from there (crew.go), and a settler writes their outcomes (settler.go,
// store.go). Nothing holds a row lock or a transaction while a handler runs.
package poller
