// Package listener turns PostgreSQL notifications into wakes, and knows at any moment
// whether it can be relied on to do so.
//
// It keeps one dedicated session that LISTENs, on top of
// [github.com/jackc/pgxlisten], and calls a function for each notification and after
// every (re)LISTEN, so that what was sent while the session was away is looked for as
// soon as it is back. The functions carry no data: they say "there may be work".
//
// A LISTEN session can be deaf without an error: behind a transaction-mode pooler, on a
// flow that a load balancer has forgotten, with a stopped server process. So the listener
// sends itself a probe through the connection pool and expects its echo. While an echo is
// missing it is not [State.Healthy], and whoever relies on it polls fast instead.
//
// The package knows channels, not events, and never opens a transaction.
package listener
