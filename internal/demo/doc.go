// Package demo shows the outbox at work to somebody who has just met it: a small shop publishes events from
// transactions on a temporary database, a worker delivers them, and every delivery is printed with the time that it
// took from the commit to the handler.
//
// What is shown is also checked: a ledger knows every event that was published, committed or rolled back, and the
// summary compares it with what the handlers saw and with what the database says in the end.
//
// The way through the files: [Run] joins the parts; place.go finds a database; stories.go decides what happens
// next in the shop, till.go writes it in transactions, reactions.go are the handlers; ledger.go keeps the books;
// line.go, screen.go and summary.go put it on the screen.
package demo
