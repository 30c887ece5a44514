package admin_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/seed-9a365b49/outbox/admin"
	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// keepIn keeps dead letters in a file, which it closes.
func keepIn(t *testing.T, db *pgtest.DB, path string, ids ...int64) error {
	t.Helper()
	file, err := admin.OpenFile(path)
	if err != nil {
		return err
	}
	defer func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, err = admin.Discard(t.Context(), db.Pool, ids, file.Keep)
	return err
}

// keptIn returns the ids of the events in a file, all of which has to be readable.
func keptIn(t *testing.T, path string) (ids []int64) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(path, ".gz") && len(text) > 0 {
		zip, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if text, err = io.ReadAll(zip); err != nil {
			t.Fatal(err)
		}
	}
	for line := range bytes.Lines(text) {
		var e struct{ ID int64 }
		if err := json.Unmarshal(line, &e); err != nil || line[len(line)-1] != '\n' {
			t.Fatalf("%q: %v", line, err)
		}
		ids = append(ids, e.ID)
	}
	return ids
}

func TestFile(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"kept.ndjson", "kept.ndjson.gz"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			add := func(n int) (ids []int64) {
				for range n {
					ids = append(ids, add(t, db, 1, isDead))
				}
				return ids
			}
			path := filepath.Join(t.TempDir(), name)

			first, second := add(3), add(2)
			if err := keepIn(t, db, path, first...); err != nil {
				t.Fatal(err)
			}
			one, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := keepIn(t, db, path, second...); err != nil {
				t.Fatal(err)
			}
			two, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := keptIn(t, path); !slices.Equal(got, append(first, second...)) {
				t.Fatalf("kept %v", got)
			}

			t.Run("wherever its end is missing, it is read and appended to", func(t *testing.T) {
				for n := range two {
					if err := os.WriteFile(path, two[:n], 0o600); err != nil {
						t.Fatal(err)
					}
					file, err := admin.OpenFile(path)
					if err != nil {
						t.Fatalf("the first %d bytes: %v", n, err)
					}
					if err := file.Close(); err != nil {
						t.Fatal(err)
					}
					if same, err := os.ReadFile(path); err != nil || !bytes.Equal(same, two[:n]) {
						t.Fatalf("opening the first %d bytes has changed them: %v", n, err)
					}
					if n%(len(two)/60) != 0 && n != len(one) { // what follows asks the database
						continue
					}
					id := add(1)
					if err := keepIn(t, db, path, id...); err != nil {
						t.Fatalf("the first %d bytes: %v", n, err)
					}
					got := keptIn(t, path)
					if n >= len(one) && !slices.Equal(got[:len(first)], first) || got[len(got)-1] != id[0] {
						t.Fatalf("of the first %d bytes and %v, %v is left", n, id, got)
					}
					torn, err := os.ReadFile(path + ".torn")
					if int64(len(torn)) != file.Torn() || !bytes.HasSuffix(two[:n], torn) || errors.Is(err, fs.ErrNotExist) != (file.Torn() == 0) {
						t.Fatalf("of the first %d bytes %d are torn, and %d moved: %v", n, file.Torn(), len(torn), err)
					}
					if err := os.Remove(path + ".torn"); err != nil && !errors.Is(err, fs.ErrNotExist) {
						t.Fatal(err)
					}
				}
				if err := os.WriteFile(path, two, 0o600); err != nil {
					t.Fatal(err)
				}
			})

			t.Run("a batch that fails leaves nothing behind", func(t *testing.T) {
				before := keptIn(t, path)
				ids := add(60) // more than are in memory at a time
				file, err := admin.OpenFile(path)
				if err != nil {
					t.Fatal(err)
				}
				_, err = admin.Discard(t.Context(), db.Pool, ids, func(ctx context.Context, tx pgx.Tx, ids []int64) error {
					return file.Keep(ctx, tx, append(ids, 4711_4711))
				})
				if err == nil {
					t.Error("an event that does not exist was kept")
				}
				if err := file.Close(); err != nil {
					t.Fatal(err)
				}
				if after := keptIn(t, path); !slices.Equal(before, after) {
					t.Errorf("%v, was %v", after, before)
				}
				if err := keepIn(t, db, path, ids...); err != nil {
					t.Fatal(err)
				}
				if after := keptIn(t, path); len(after) != len(before)+60 {
					t.Errorf("%d, were %d", len(after), len(before))
				}
			})

			t.Run("one at a time", func(t *testing.T) {
				file, err := admin.OpenFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := admin.CheckFile(path); err != nil {
					t.Errorf("it cannot be looked at meanwhile: %v", err)
				}
				if other, err := admin.OpenFile(path); err == nil || !strings.Contains(err.Error(), "somebody else keeps events in it") {
					t.Errorf("%v, %v", other, err)
				}
				if err := file.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}

	t.Run("what is moved or removed meanwhile gets no more", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Database(t)
		for name, take := range map[string]func(path string) error{
			"moved.ndjson":   func(path string) error { return os.Rename(path, path+".1") },
			"removed.ndjson": os.Remove,
		} {
			path := filepath.Join(t.TempDir(), name)
			file, err := admin.OpenFile(path)
			if err != nil {
				t.Fatal(err)
			}
			id := add(t, db, 1, isDead)
			if err := take(path); err != nil {
				t.Fatal(err)
			}
			if n, err := admin.Discard(t.Context(), db.Pool, []int64{id}, file.Keep); n != 0 || err == nil || !strings.Contains(err.Error(), "moved or removed") {
				t.Errorf("%s: %d, %v", name, n, err)
			}
			if err := file.Close(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})

	t.Run("a look at one that is not there leaves nothing", func(t *testing.T) {
		t.Parallel()
		directory := t.TempDir()
		if err := admin.CheckFile(filepath.Join(directory, "new.ndjson")); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(directory); err != nil || len(left) > 0 {
			t.Errorf("%v, %v", left, err)
		}
	})

	t.Run("one that has remained empty is removed, if it was made", func(t *testing.T) {
		t.Parallel()
		made, there := filepath.Join(t.TempDir(), "made.ndjson"), filepath.Join(t.TempDir(), "there.ndjson")
		if err := os.WriteFile(there, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for path, want := range map[string]bool{made: false, there: true} {
			file, err := admin.OpenFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); (err == nil) != want {
				t.Errorf("%s: %v", path, err)
			}
		}
	})

	t.Run("what holds something else is refused, and left as it is", func(t *testing.T) {
		t.Parallel()
		zipped := func(text string) string {
			var b bytes.Buffer
			zip := gzip.NewWriter(&b)
			fmt.Fprint(zip, text)
			if err := zip.Close(); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		event := `{"id": 1, "payload": {}}` + "\n"
		long := zipped(strings.Repeat(event, 1000))
		for name, text := range map[string]string{
			"text.ndjson":         "dear diary",
			"lines.ndjson":        "dear diary\n",
			"array.ndjson":        "[\n{\"id\": 1}\n]\n",
			"others.ndjson":       "{\"name\": 1}\n",
			"end.ndjson":          event + "dear diary",
			"zipped.ndjson":       long,
			"plain.ndjson.gz":     event,
			"short.gz":            "x",
			"text.gz":             zipped("dear diary"),
			"empty.gz":            zipped(""),
			"torn.gz":             long[:len(long)-3], // of another program
			"damaged.gz":          long[:20] + "\xff\xff\xff\xff" + long[24:],
			"something behind.gz": long + "dear diary",
		} {
			path := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := admin.OpenFile(path); err == nil {
				t.Errorf("%s: no error", name)
			}
			if err := admin.CheckFile(path); err == nil {
				t.Errorf("%s: no error when it is checked", name)
			}
			if after, err := os.ReadFile(path); err != nil || string(after) != text {
				t.Errorf("%s was changed: %v", name, err)
			}
		}
		for _, path := range []string{t.TempDir(), os.DevNull, filepath.Join(t.TempDir(), "no", "such")} {
			if _, err := admin.OpenFile(path); err == nil {
				t.Errorf("%s: no error", path)
			}
			if err := admin.CheckFile(path); err == nil {
				t.Errorf("%s: no error when it is checked", path)
			}
		}
	})

	t.Run("events that were compressed by hand are added to", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "kept.gz")
		var b bytes.Buffer
		zip := gzip.NewWriter(&b)
		fmt.Fprintln(zip, `{"id": 1, "payload": {}}`)
		if err := zip.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		db := pgtest.Database(t)
		id := add(t, db, 1, isDead)
		if err := keepIn(t, db, path, id); err != nil {
			t.Fatal(err)
		}
		if got := keptIn(t, path); !slices.Equal(got, []int64{1, id}) {
			t.Errorf("%v", got)
		}
	})
}
