package dispatch_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/seed-9a365b49/outbox/dispatch"
)

func TestCleanError(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", dispatch.MaxErrorBytes)
	for _, tc := range []struct{ name, in, want string }{
		{"an ordinary text stays", "connection refused: größer, 中文", "connection refused: größer, 中文"},
		{"nothing stays nothing", "", ""},
		{"NUL is dropped", "a\x00b\x00", "ab"},
		{"an invalid byte is replaced", "a\xffb", "a\uFFFDb"},
		{"a lone surrogate is replaced", "a\xed\xa0\x80b", "a\uFFFD\uFFFD\uFFFDb"},
		{"a text that just fits stays", long, long},
		{"a longer one is cut", long + "y", long},
		{"the cut is between runes", long[1:] + "ß", long[1:]},
		{"NULs do not count", strings.Repeat("\x00", 5000) + "end", "end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := dispatch.CleanError(tc.in); got != tc.want {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func FuzzCleanError(f *testing.F) {
	f.Add("plain")
	f.Add("a\x00\xff\xed\xa0\x80")
	f.Add(strings.Repeat("中", 700))
	f.Fuzz(func(t *testing.T, s string) {
		got := dispatch.CleanError(s)
		if !utf8.ValidString(got) || strings.ContainsRune(got, 0) || len(got) > dispatch.MaxErrorBytes {
			t.Fatalf("PostgreSQL or the limit would refuse %q", got)
		}
		if again := dispatch.CleanError(got); again != got {
			t.Fatalf("cleaning twice changes %q to %q", got, again)
		}
	})
}

func TestALongErrorDoesNotHideThoseOfOtherSubscribers(t *testing.T) {
	t.Parallel()
	d := newDispatcher(t, dispatch.Config{})
	for i := range 3 {
		err := errors.New("short")
		if i == 0 {
			err = errors.New(strings.Repeat("é", 1<<20))
		}
		subscribe(t, d, fmt.Sprintf("s%d", i), failWith(err))
	}
	out := d.Dispatch(t.Context(), delivery())
	if len(out.Error) > dispatch.MaxErrorBytes || !utf8.ValidString(out.Error) || !strings.HasSuffix(out.Error, "; s1: short; s2: short") {
		t.Fatalf("%d bytes: %q", len(out.Error), out.Error)
	}
}
