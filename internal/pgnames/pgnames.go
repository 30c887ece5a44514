// Package pgnames holds the names by which sessions find one another in a database: channels, lock keys, and the
// prefix of application names. The migrations that use one of them say so.
package pgnames

const (
	// WakeChannel is notified by the insert trigger (migration 00007_notify.sql).
	WakeChannel = "events_outbox_wake"
	// ReleaseChannel is notified by an owner that gives the outbox up.
	ReleaseChannel = "events_outbox_release"
	// RetryChannel is notified by whoever has made events due (package admin).
	RetryChannel = "events_outbox_retry"
	// ProbeChannel carries the listeners' probes of themselves.
	ProbeChannel = "events_outbox_probe"

	// OwnerLock is the first key of the owner's advisory lock, "outb" in ASCII; the second is the OID
	// of events.outbox.
	OwnerLock int32 = 0x6f757462
	// GateLock is the first key of the advisory lock that a sleeping owner holds and publishers try, "gate" in ASCII; the
	// second is the OID of events.outbox (migration 00009_gate.sql).
	GateLock int32 = 0x67617465
	// ArchiveLock is the first key of the advisory lock of whoever deletes old events, "arch" in ASCII; the second is the OID of
	// events.outbox.
	ArchiveLock int32 = 0x61726368
	// MigrationLock is the advisory lock of whoever migrates, "outbox" in ASCII.
	MigrationLock int64 = 0x6f7574626f78

	// AuditLock is the advisory lock of whoever creates audit.events, "audit" in ASCII.
	AuditLock int64 = 0x6175646974

	// Application begins the application_name of every session of a worker.
	Application = "outbox/"
	// OwnerApplication begins that of the sessions that own the outbox, or try to.
	OwnerApplication = Application + "owner"
	// ListenerApplication begins that of the sessions that listen.
	ListenerApplication = Application + "listener"
)
