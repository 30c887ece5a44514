-- Who works: one owner per outbox, by a session advisory lock on (a constant, the table's OID).

-- name: TryOwn :one
-- Tries the owner's lock, never waiting (a waiting statement holds a snapshot), and never on a server in recovery.
SELECT pg_is_in_recovery() AS in_recovery, pg_backend_pid() AS pid,
       (CASE WHEN pg_is_in_recovery() THEN false
             ELSE pg_try_advisory_lock(sqlc.arg(lock_key)::int, 'events.outbox'::regclass::oid::bigint::bit(32)::int) END)::boolean AS owned;

-- name: ReleaseOwnership :one
SELECT pg_advisory_unlock(sqlc.arg(lock_key)::int, 'events.outbox'::regclass::oid::bigint::bit(32)::int);

-- name: OwnerSession :one
-- The session that holds the owner's lock: whether it is a worker's, by its application, and whether it is one that this role
-- may end. Another can hold the lock: a pooler's, that a worker has left. Only an idle session is idle: one that is sending a
-- large answer over a slow network is at work. A column of another role's session that this role may not see is NULL.
SELECT a.pid::int AS pid, COALESCE(a.usename, '')::text AS user_name, COALESCE(a.application_name, '')::text AS application,
       COALESCE(host(a.client_addr), '')::text AS client,
       COALESCE(CASE WHEN starts_with(a.state, 'idle') THEN extract(epoch FROM clock_timestamp() - a.state_change) END, 0)::float8 AS idle_s,
       COALESCE(starts_with(a.application_name, sqlc.arg(application_prefix)::text), false)::boolean AS worker,
       COALESCE(a.usename = current_user AND starts_with(a.application_name, sqlc.arg(application_prefix)::text), false)::boolean AS ours
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
  AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
  AND l.classid::bigint = sqlc.arg(lock_key)::bigint
  AND l.objid = 'events.outbox'::regclass::oid;

-- name: TerminateSession :one
SELECT pg_terminate_backend(sqlc.arg(pid)::int);

-- name: SessionState :one
-- What a session is doing by the server: active, idle, or gone. An owner that waits for an answer while its session is
-- idle has lost its connection.
SELECT COALESCE((SELECT COALESCE(a.state, 'hidden') FROM pg_catalog.pg_stat_activity a WHERE a.pid = sqlc.arg(pid)::int), 'gone')::text AS state;

-- name: SessionHere :one
-- Whether a session of ours, known by its process, is one of this server and database.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_stat_activity a
    WHERE a.pid = sqlc.arg(pid)::int AND a.datname = current_database() AND starts_with(a.application_name, sqlc.arg(application_prefix)::text)
)::boolean AS here;

-- name: BackendPID :one
-- The server's process behind this connection. A pooler tells its client another one when it connects.
SELECT pg_backend_pid();

-- name: TuneSession :one
-- Settings of the owner's session, whose few statements must not depend on the state of the statistics: their plans are made
-- once, for any parameters, perhaps while the table is empty and every plan looks as good, and read the index that each
-- names. Without sorting, an order comes from that index.
SELECT set_config('plan_cache_mode', 'force_generic_plan', false) AS plan_cache_mode,
       set_config('enable_seqscan', 'off', false) AS enable_seqscan,
       set_config('enable_bitmapscan', 'off', false) AS enable_bitmapscan,
       set_config('enable_sort', 'off', false) AS enable_sort,
       set_config('jit', 'off', false) AS jit;
