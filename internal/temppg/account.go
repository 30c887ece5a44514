package temppg

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
)

// account is a user that processes are started as.
type account struct {
	name     string
	uid, gid uint32
}

// unprivilegedUsers are tried in this order; every Unix has at least one of them.
var unprivilegedUsers = []string{"postgres", "nobody", "daemon"}

// serverAccount returns the user to run PostgreSQL as, nil for the current one.
func serverAccount() (*account, error) {
	if supported != nil {
		return nil, supported
	}
	if os.Geteuid() != 0 {
		return nil, nil
	}
	return unprivileged(os.Getenv("OUTBOX_PG_USER"), user.Lookup)
}

// unprivileged chooses the user that a server started by root runs as: the one that was
// asked for, else the first of [unprivilegedUsers] that exists.
func unprivileged(asked string, lookup func(string) (*user.User, error)) (*account, error) {
	names := unprivilegedUsers
	if asked != "" {
		names = []string{asked}
	}
	for _, name := range names {
		found, err := lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(found.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(found.Gid, 10, 32)
		if errUID != nil || errGID != nil || uid == 0 {
			continue
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("PostgreSQL refuses to run as root, and there is no unprivileged user %s; name one in OUTBOX_PG_USER",
		strings.Join(names, ", "))
}
