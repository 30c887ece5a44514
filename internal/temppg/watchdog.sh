# The parent of a temporary PostgreSQL server. Usage: watchdog.sh BINDIR FOLDER CONF LOG
#
# Makes a folder of its own below FOLDER and a database cluster in it with CONF at the end
# of its postgresql.conf, then obeys one command a line on standard input. Each of the three
# is answered with a line on standard output, "done" or "failed"; the first line also has the
# folder or the reason. When its input ends, the server is stopped and the folder removed.
# LOG is the name of the log file in the folder; without one, the server's log goes to
# standard error.
set -u
bin=$1 conf=$3 log=$4
server=

# The reader of our answers may be dead already; that must not kill us before the clean-up.
trap '' PIPE

dir=$(mktemp -d "$2/outbox-pg-XXXXXX" 2>&1) && dir=$(cd "$dir" && pwd -P) || { echo "failed $dir"; exit 0; }
trap clean_up EXIT
trap 'exit 1' HUP INT TERM
cd "$dir"
echo "done $dir"

clean_up() {
	halt INT 50 || halt QUIT 500 || halt KILL 500
	cd /
	rm -rf "$dir"
}

# postmasters prints the processes that serve the folder: our child, and whoever
# postmaster.pid names, since others may have restarted the server with pg_ctl. Where
# /proc exists, it tells a postmaster from a stranger who got the number of a dead one.
postmasters() {
	named=
	[ ! -f data/postmaster.pid ] || read -r named <data/postmaster.pid
	[ "$named" != "$server" ] || named=
	for pid in $server $named; do
		kill -0 "$pid" 2>/dev/null || continue
		if [ -d /proc/self ]; then
			case $(readlink "/proc/$pid/cwd") in "$dir"*) ;; *) continue ;; esac
		fi
		echo "$pid"
	done
}

# halt SIGNAL N sends the signal and waits up to N * 20 ms for the server to be gone.
halt() {
	running=$(postmasters)
	[ -z "$running" ] || kill -s "$1" $running 2>/dev/null
	n=0
	while [ -n "$(postmasters)" ]; do
		[ $((n += 1)) -le "$2" ] || return 1
		sleep 0.02
	done
}

# start PORT returns when the server takes connections, or has ended, or after 5 minutes
# (a crash recovery can take long).
start() {
	if [ -n "$log" ]; then
		"$bin/postgres" -D "$dir/data" -p "$1" </dev/null >>"$log" 2>&1 &
	else
		"$bin/postgres" -D "$dir/data" -p "$1" </dev/null >&2 &
	fi
	server=$!
	n=0
	until ready; do
		kill -0 "$server" 2>/dev/null && [ $((n += 1)) -le 15000 ] || return 1
		sleep 0.02
	done
}

# ready reads the first and the eighth line of postmaster.pid: the process that wrote the
# file, which may be a dead one, and its state.
ready() {
	[ -f data/postmaster.pid ] && read -r named <data/postmaster.pid &&
		[ "$named" = "$server" ] && grep -q '^ready' data/postmaster.pid
}

make_cluster() {
	"$bin/initdb" --no-sync --auth trust --username postgres --encoding UTF8 --locale C \
		--pgdata data </dev/null >initdb.log 2>&1 &&
		printf '%s' "$conf" "unix_socket_directories = '$dir'
" >>data/postgresql.conf
}

answer() {
	if "$@"; then echo done; else echo failed; fi
}

answer make_cluster
while read -r command argument; do
	case "$command $argument" in
	"halt fast") answer halt INT 1500 ;;
	"halt immediate") answer halt QUIT 1500 ;;
	"halt kill") answer halt KILL 1500 ;;
	start*) answer start "$argument" ;;
	esac
done
