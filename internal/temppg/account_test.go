//go:build unix

package temppg

import (
	"os/user"
	"strings"
	"testing"
)

func TestUnprivilegedUser(t *testing.T) {
	t.Parallel()

	passwd := func(users ...user.User) func(string) (*user.User, error) {
		return func(name string) (*user.User, error) {
			for _, u := range users {
				if u.Username == name {
					return &u, nil
				}
			}
			return nil, user.UnknownUserError(name)
		}
	}
	postgres := user.User{Username: "postgres", Uid: "101", Gid: "104"}
	nobody := user.User{Username: "nobody", Uid: "65534", Gid: "65534"}
	daemon := user.User{Username: "daemon", Uid: "1", Gid: "1"}
	root := user.User{Username: "root", Uid: "0", Gid: "0"}

	for name, tc := range map[string]struct {
		asked  string
		lookup func(string) (*user.User, error)
		want   account
	}{
		"postgres comes first":             {"", passwd(daemon, nobody, postgres), account{"postgres", 101, 104}},
		"then nobody":                      {"", passwd(daemon, nobody), account{"nobody", 65534, 65534}},
		"then daemon":                      {"", passwd(daemon), account{"daemon", 1, 1}},
		"the asked one wins":               {"daemon", passwd(daemon, postgres), account{"daemon", 1, 1}},
		"one that is root in disguise not": {"", passwd(user.User{Username: "postgres", Uid: "0", Gid: "0"}, nobody), account{"nobody", 65534, 65534}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := unprivileged(tc.asked, tc.lookup)
			if err != nil || *got != tc.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}

	for name, tc := range map[string]struct {
		asked  string
		lookup func(string) (*user.User, error)
		says   string
	}{
		"nobody is there":     {"", passwd(root), "postgres, nobody, daemon"},
		"the asked is absent": {"pg", passwd(postgres), "pg"},
		"root is asked for":   {"root", passwd(root, postgres), "OUTBOX_PG_USER"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := unprivileged(tc.asked, tc.lookup); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}
