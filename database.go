package outbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/audit"
	"github.com/seed-9a365b49/outbox/db"
	"github.com/seed-9a365b49/outbox/db/eventsdb"
	"github.com/seed-9a365b49/outbox/internal/pgnames"
	"github.com/seed-9a365b49/outbox/internal/pgsession"
	"github.com/seed-9a365b49/outbox/migrations"
)

// Errors of a database that a worker cannot start on. Each comes wrapped in a line that says what to do.
var (
	// ErrNotMigrated: the schema is missing or older than this build needs.
	ErrNotMigrated = errors.New("the outbox schema is not up to date")
	// ErrNewerSchema: the schema is newer than this build. [Migrate] returns it too.
	ErrNewerSchema = migrations.ErrNewer
	// ErrStandby: the server is in recovery.
	ErrStandby = errors.New("the server is a standby (in recovery)")
	// ErrPrivileges: the role lacks privileges.
	ErrPrivileges = audit.ErrPrivileges
)

// database is how a worker reaches the database: a pool, and the configurations of its dedicated sessions.
type database struct {
	pool    *pgxpool.Pool
	ownPool bool
	main    *pgx.ConnConfig // where the pool leads
	direct  *pgx.ConnConfig // where LISTEN and advisory locks work
	split   bool            // direct is another address
	facts   eventsdb.SchemaFactsRow
	timeout time.Duration
}

// connect opens the pool and checks, in this order, that the server answers, that it is a primary with the right
// schema and the privileges, and that the direct address answers.
func connect(ctx context.Context, cfg Config) (db *database, err error) {
	db = &database{pool: cfg.Pool, timeout: cfg.ConnectTimeout}
	defer func() {
		if err != nil {
			db.close()
		}
	}()
	if db.pool == nil {
		db.ownPool = true
		if db.pool, err = openPool(ctx, cfg); err != nil {
			return db, err
		}
	}
	db.main = db.pool.Config().ConnConfig.Copy()
	db.direct = db.main
	if cfg.ListenURL != "" {
		if db.direct, err = parseAddress(cfg.ListenURL); err != nil {
			return db, fmt.Errorf("ListenURL: %w", err)
		}
		db.split = true
	}

	checking, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()
	if err := db.check(checking, cfg); err != nil {
		return db, err
	}
	conn, err := db.connectListener(checking)
	if err != nil {
		return db, fmt.Errorf("connect to the direct address: %w", err)
	}
	return db, errors.Join(db.checkDirect(checking, conn), conn.Close(checking))
}

// ErrOtherDatabase: the direct address leads elsewhere than the main one.
var ErrOtherDatabase = errors.New("the direct address (ListenURL, --listen-url) and the main one lead to different databases, so that events of one would be marked in the other: correct one of them")

// ErrPooled: a pooler is behind the address of the dedicated sessions.
var ErrPooled = errors.New("the address leads through a pooler, which would keep the worker's lock for itself: give a direct one as ListenURL (--listen-url)")

// checkDirect fails for a connection to another database than the pool's: what is fetched there would be marked here. And it
// fails for one through a pooler: it tells its client another process id than the server's own. An
// advisory lock taken there stays with the pooler's connection when the worker has gone. The question has no name, since a
// pooler's connections know the statements of others and not this one's.
func (d *database) checkDirect(ctx context.Context, conn *pgx.Conn) error {
	pid, err := eventsdb.New(db.FreshPlans(conn)).BackendPID(ctx)
	if err != nil {
		return fmt.Errorf("ask for the server's process: %w", err)
	}
	if uint32(pid) != conn.PgConn().PID() {
		return ErrPooled
	}
	here, err := eventsdb.New(d.pool).SessionHere(ctx, eventsdb.SessionHereParams{Pid: pid, ApplicationPrefix: pgnames.Application})
	if err != nil {
		return fmt.Errorf("look for the direct session through the pool: %w", err)
	}
	if !here {
		return ErrOtherDatabase
	}
	return nil
}

// openPool opens the pool of a worker that was given a URL. Settling needs one connection at a time, the probe another.
func openPool(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(cfg.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("DatabaseURL: %w", err)
	}
	if !strings.Contains(cfg.DatabaseURL, "pool_max_conns") {
		config.MaxConns = 4
	}
	config.MaxConnLifetimeJitter = max(config.MaxConnLifetimeJitter, config.MaxConnLifetime/10)
	config.PingTimeout = max(config.PingTimeout, 5*time.Second)
	config.ConnConfig.ConnectTimeout = cfg.ConnectTimeout
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = pgnames.Application + "pool"
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	return pool, nil
}

// parseAddress reads an address for a single connection. An address that also configures a pool (pool_max_conns) will do:
// what is the pool's must not reach the server as a setting.
func parseAddress(address string) (*pgx.ConnConfig, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	return config.ConnConfig, nil
}

func (db *database) close() {
	if db.ownPool && db.pool != nil {
		db.pool.Close()
	}
}

// check asks whether a worker can work on this database.
func (db *database) check(ctx context.Context, cfg Config) error {
	queries := eventsdb.New(db.pool)
	there, err := queries.SchemaThere(ctx)
	switch {
	case err != nil:
		return explainPrivileges(fmt.Errorf("reach the database: %w", err))
	case there.InRecovery:
		return fmt.Errorf("%w: connect to the primary (with several hosts, add target_session_attrs=read-write)", ErrStandby)
	case !there.Versioned && there.TableThere:
		return fmt.Errorf("%w: database %q has a table events.outbox that is not migrated; run `outbox migrate up` to adopt it", ErrNotMigrated, there.Database)
	case !there.Versioned:
		return fmt.Errorf("%w: database %q has no outbox; run `outbox migrate up`", ErrNotMigrated, there.Database)
	}
	db.facts, err = queries.SchemaFacts(ctx)
	if err != nil {
		return explainPrivileges(fmt.Errorf("read the schema's version: %w", err))
	}
	if err := compareVersion(fmt.Sprintf("database %q", there.Database), db.facts.Version); err != nil {
		return err
	}
	missing, err := queries.MissingPrivileges(ctx, cfg.ArchiveAt != "")
	if err != nil {
		return explainPrivileges(fmt.Errorf("check privileges: %w", err))
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: as the owner of the schema, run GRANT %s TO %[3]q (docs/roles.md has the least of them)", ErrPrivileges, strings.Join(missing, fmt.Sprintf(" TO %q; GRANT ", db.main.User)), db.main.User)
	}
	if cfg.Audit {
		if err := audit.Check(ctx, db.pool, true, cfg.ArchiveAt != ""); err != nil {
			return err
		}
	}
	return db.warn(ctx, queries, cfg.Log)
}

// compareVersion returns an error that says what to do where whose schema is not of the version that this build needs.
func compareVersion(whose string, version int32) error {
	switch {
	case version < migrations.Latest:
		return fmt.Errorf("%w: %s has version %d, this build needs %d; run `outbox migrate up`", ErrNotMigrated, whose, version, migrations.Latest)
	case version > migrations.Latest:
		return fmt.Errorf("%w: %s has version %d, this build knows %d; use a newer outbox", ErrNewerSchema, whose, version, migrations.Latest)
	}
	return nil
}

// backlog counts the events that are not published.
func (db *database) backlog(ctx context.Context) (b admin.Backlog, err error) {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, db.pool, snapshot, func(tx pgx.Tx) (err error) {
		b, err = admin.CountBacklog(ctx, tx)
		return err
	})
	return b, err
}

// warn logs settings under which some guarantee does not hold.
func (db *database) warn(ctx context.Context, queries *eventsdb.Queries, log zerolog.Logger) error {
	if db.facts.SequenceCache > 1 {
		log.Warn().Int64("cache", db.facts.SequenceCache).
			Msg("sequence_cache: ids are drawn ahead of their transaction, so order within an aggregate is not guaranteed; ALTER SEQUENCE … CACHE 1")
	}
	mode, err := queries.NotifyMode(ctx)
	if err != nil {
		return fmt.Errorf("look at the trigger: %w", err)
	}
	if mode == string(migrations.NotifyOff) {
		log.Warn().Msg("notify_off: events are found by polling")
	} else if db.facts.MaxPreparedTransactions > 0 {
		log.Warn().Int32("max_prepared_transactions", db.facts.MaxPreparedTransactions).
			Msg("two_phase_commit: PREPARE TRANSACTION refuses NOTIFY; if publishers use it, run `outbox migrate notify off`")
	}
	return nil
}

// explainPrivileges adds what to grant to an error of insufficient privilege.
func explainPrivileges(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		return fmt.Errorf("%w: see docs/roles.md: %w", ErrPrivileges, err)
	}
	return err
}

// connectListener opens the session that listens.
func (db *database) connectListener(ctx context.Context) (*pgx.Conn, error) {
	return pgx.ConnectConfig(ctx, dedicated(db.direct, "listener"))
}

// dedicated is the configuration of a session that stays open. It prepares its statements, also where the pool
// must not, since no pooler may be in its way.
func dedicated(base *pgx.ConnConfig, role string) *pgx.ConnConfig {
	config := pgsession.Config(base, role)
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	return config
}

// connectOwner opens the session that owns the outbox and fetches.
func (db *database) connectOwner(ctx context.Context) (*pgx.Conn, error) {
	return db.connectDirect(ctx, "owner")
}

// connectGate opens the session that opens and closes the gate.
func (db *database) connectGate(ctx context.Context) (*pgx.Conn, error) {
	return db.connectDirect(ctx, "gate")
}

// connectDirect opens a session on the server itself. Where the direct address is another one than the
// main one and does not answer, the main one will do, unless a pooler is behind it.
func (db *database) connectDirect(ctx context.Context, role string) (*pgx.Conn, error) {
	timeout := db.timeout
	if db.split {
		timeout = min(timeout, directPatience)
	}
	conn, err := db.open(ctx, db.direct, role, timeout)
	if err == nil || !db.split || ctx.Err() != nil {
		return conn, err
	}
	conn, err2 := db.open(ctx, db.main, role, db.timeout)
	if err2 != nil {
		return nil, errors.Join(err, err2)
	}
	return conn, nil
}

// directPatience is how long the direct address may take where there is another one to try.
const directPatience = time.Second

func (db *database) open(ctx context.Context, config *pgx.ConnConfig, role string, timeout time.Duration) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, dedicated(config, role))
	if err != nil {
		return nil, err
	}
	if err := db.checkDirect(ctx, conn); err != nil {
		_ = conn.Close(ctx) // not ours to use, whatever closing says
		return nil, err
	}
	return conn, nil
}
