package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/seed-9a365b49/outbox/internal/pgtest"
)

// The table is checked against PostgreSQL too, except where we refuse more than it does.
func TestCheckJSONB(t *testing.T) {
	t.Parallel()
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	tests := map[string]struct {
		text     string
		want     string // part of the error; "": accepted
		stricter bool   // PostgreSQL accepts it
	}{
		"scalars":                         {text: `[null, true, false, 0, -1, "", {}, []]`},
		"an escaped backslash before u":   {text: `"\\u0000 \\\\u0000 \\ud800"`},
		"NUL":                             {text: `"a\u0000"`, want: "string at byte 0 contains NUL"},
		"NUL after escaped backslashes":   {text: `["\\\\\u0000"]`, want: "string at byte 1 contains NUL"},
		"NUL in a name":                   {text: `{"\u0000":1}`, want: "string at byte 1 contains NUL"},
		"a surrogate pair":                {text: `"\ud83d\ude00\uD83D\uDE00"`},
		"the limits of surrogates":        {text: `"\ud800\udc00\udbff\udfff"`},
		"the last high surrogate alone":   {text: `"\udbff"`, want: "half of a surrogate pair"},
		"a high surrogate alone":          {text: `"\ud83d"`, want: "half of a surrogate pair"},
		"a high surrogate before text":    {text: `"\ud83dx"`, want: "half of a surrogate pair"},
		"a high surrogate before escapes": {text: `"\ud83d\n\ude00"`, want: "half of a surrogate pair"},
		"two high surrogates":             {text: `"\ud83d\ud83d\ude00"`, want: "half of a surrogate pair"},
		"a low surrogate alone":           {text: `"\ude00"`, want: "half of a surrogate pair"},
		"a low surrogate after a pair":    {text: `"\ud83d\ude00\ude00"`, want: "half of a surrogate pair"},
		"the neighbours of surrogates":    {text: `"\ud7ff\ue000\uffff\u0001"`},
		"a surrogate in a name":           {text: `{"\udfff":1}`, want: "half of a surrogate pair"},
		"a surrogate as bytes":            {text: "\"\xed\xa0\x80\"", want: "not valid UTF-8"},
		"a cut rune":                      {text: "\"\xe2\x82\"", want: "not valid UTF-8"},
		"an overlong NUL":                 {text: "\"\xc0\x80\"", want: "not valid UTF-8"},
		"runes of every length":           {text: "\"aé€😀\u2028\ufffe\""},
		"long numbers":                    {text: `[9007199254740993, 1.` + strings.Repeat("9", 16383) + `, ` + strings.Repeat("9", 131072) + `]`},
		"the largest exponent":            {text: `[1e131071, -9.99E+131071, 0.001e131074, 10e131070]`},
		"too large by one":                {text: `[1, 1e131072]`, want: "number at byte 4 has more than"},
		"too large with a fraction":       {text: `12.5e131071`, want: "has more than"},
		"too large with trailing zeros":   {text: `10.0e131071`, want: "has more than"},
		"too many digits":                 {text: strings.Repeat("9", 131073), want: "has more than"},
		"the smallest exponent":           {text: `[1e-16383, 0.1e-16382, 123e-16383]`},
		"too small by one":                {text: `1e-16384`, want: "has more than"},
		"too many decimals":               {text: `0.` + strings.Repeat("0", 16384), want: "has more than"},
		"trailing zeros count":            {text: `1.0e-16383`, want: "has more than"},
		"zero may have a great exponent":  {text: `[0e131073, 0.00e1073741822, -0e0]`},
		"zero with a greater exponent":    {text: `0e1073741824`, want: "has more than"},
		"an exponent beyond int64":        {text: `1e99999999999999999999`, want: "has more than"},
		"a negative one":                  {text: `1e-99999999999999999999`, want: "has more than"},
		"numbers inside strings":          {text: `"1e999999"`},
		"brackets inside strings":         {text: `["` + strings.Repeat("[{", 2000) + `"]`},
		"many levels":                     {text: nested(1000)},
		"too many levels":                 {text: nested(1001), want: "nested more than 1000 levels deep", stricter: true},
		"many lists side by side":         {text: `[` + strings.Repeat("[],", 3000) + `[]]`},
		"numbers that fill a gigabyte":    {text: `[` + strings.Repeat("1e131071,", 2048) + `1]`, want: "as text, more than", stricter: true},
	}
	pool := pgtest.Database(t).Pool
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !json.Valid([]byte(tt.text)) {
				t.Fatal("the test is wrong: not JSON")
			}
			err := checkJSONB([]byte(tt.text))
			if tt.want == "" && err != nil {
				t.Fatalf("rejected: %v", err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			if refused := refusedByPostgreSQL(t, pool, tt.text); refused != (tt.want != "" && !tt.stricter) {
				t.Fatalf("refused by PostgreSQL: %t", refused)
			}
		})
	}
}

// Whatever is accepted is stored, as PostgreSQL itself would write it; whatever is
// rejected, PostgreSQL refuses.
func TestPublishAcceptsWhatJSONBHolds(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool
	rapid.Check(t, func(rt *rapid.T) {
		text := jsonText(4).Draw(rt, "data")
		id, err := Publish(t.Context(), pool, Message{AggregateType: "t", AggregateID: uuid.New(), EventType: "e", Data: json.RawMessage(text)})
		if errors.Is(err, ErrInvalidMessage) {
			if !refusedByPostgreSQL(rt, pool, text) {
				rt.Fatalf("rejected, but PostgreSQL takes it: %v", err)
			}
			return
		}
		if err != nil {
			rt.Fatalf("accepted, but not stored: %v", err)
		}
		var got, want string
		err = pool.QueryRow(t.Context(), "SELECT (payload->'data')::text, $2::text::jsonb::text FROM events.outbox WHERE id = $1", id, text).Scan(&got, &want)
		if err != nil {
			rt.Fatal(err)
		}
		if got != want {
			rt.Fatalf("stored %s, want %s", got, want)
		}
	})
}

func FuzzCheckJSONB(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1e131071,-0.0e-5,"\ud83d\ude00\\u0000"]}`, `"\u0000"`, `"\udc00"`, `1e-16384`, "\"\xff\"", `[[[]]]`, `0e1073741824`,
	} {
		f.Add(seed)
	}
	pool := pgtest.Database(f).Pool
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) {
			return
		}
		err := checkJSONB([]byte(text))
		if errors.Is(err, errTooDeep) {
			return
		}
		if refused := refusedByPostgreSQL(t, pool, text); refused != (err != nil) {
			t.Fatalf("%q: got %v; refused by PostgreSQL: %t", text, err, refused)
		}
	})
}

// jsonText generates JSON, half of it with something that jsonb does not hold.
func jsonText(depth int) *rapid.Generator[string] {
	unit := rapid.SampledFrom([]string{
		"a", "é", "😀", " ", "/", "{", "1", `\\`, `\"`, `\n`, `\/`, `\u00e9`, `\u2028`, `\ud83d\ude00`, `\\u0000`, `\\\\ud800`, `\uFFFE`,
		"a", "b", "c", "d", `\u0000`, `\ud800`, `\udc00`, "\xff",
	})
	text := rapid.Map(rapid.SliceOfN(unit, 0, 5), func(units []string) string { return `"` + strings.Join(units, "") + `"` })
	number := rapid.Custom(func(t *rapid.T) string {
		mantissa := rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?`).Draw(t, "mantissa")
		exponent := rapid.SampledFrom([]string{
			"", "", "", "e5", "E-7", "e+400", "e131065", "e131071", "e131072", "e-16370", "e-16383", "e-16384", "e1073741822", "e1073741824",
		}).Draw(t, "exponent")
		return mantissa + exponent
	})
	scalar := rapid.OneOf(text, number, rapid.SampledFrom([]string{"null", "true", "false"}))
	if depth == 0 {
		return scalar
	}
	space := rapid.SampledFrom([]string{"", " ", "\n\t"})
	list := rapid.Custom(func(t *rapid.T) string {
		var elements []string
		for range rapid.IntRange(0, 4).Draw(t, "length") {
			elements = append(elements, space.Draw(t, "space")+jsonText(depth-1).Draw(t, "element"))
		}
		return "[" + strings.Join(elements, ",") + "]"
	})
	object := rapid.Custom(func(t *rapid.T) string {
		var members []string
		for range rapid.IntRange(0, 4).Draw(t, "length") {
			members = append(members, text.Draw(t, "name")+space.Draw(t, "space")+":"+jsonText(depth-1).Draw(t, "value"))
		}
		return "{" + strings.Join(members, ",") + "}"
	})
	return rapid.OneOf(scalar, list, object)
}

func refusedByPostgreSQL(t interface {
	Helper()
	Context() context.Context
	Fatal(...any)
}, db interface {
	QueryRow(context.Context, string, ...any) pgx.Row
}, text string,
) bool {
	t.Helper()
	var ok bool
	err := db.QueryRow(t.Context(), "SELECT $1::text::jsonb IS NOT NULL", text).Scan(&ok)
	var pg *pgconn.PgError
	if err != nil && (!errors.As(err, &pg) || pg.Code[:2] != "22") {
		t.Fatal(err)
	}
	return err != nil
}
