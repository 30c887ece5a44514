package poller

import (
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// scanner reads the rows of fetches. It does what sqlc's code for them would, but a backlog is read by
// it: each row lands where it stays, and the few names of types that there are take no memory of their own.
type scanner struct {
	names map[string]string
}

// maxNames bounds how many names are remembered. Nobody has so many types.
const maxNames = 1000

// read returns the rows of an answer, which has the columns of FetchNew, and of FetchPage if below is
// given: the ids of its first row go there. It expects about so many.
func (sc *scanner) read(answer pgx.Rows, expected int, below *[]int64) ([]*row, error) {
	var (
		r       row
		kind    int32
		columns = []any{
			&r.id,
			name{sc, &r.aggregate.Type},
			(*id)(&r.aggregate.ID),
			name{sc, &r.eventType},
			(*[]byte)(&r.payload),
			&r.occurredAt, &r.retryCount, &kind, &r.blocked,
		}
	)
	var ids []int64
	first := below != nil
	if first {
		columns = append(columns, &ids)
	}
	rows := make([]row, 0, expected) // one allocation; the rows of a page leave memory together
	for answer.Next() {
		r = row{}
		if err := answer.Scan(columns...); err != nil { // which closes the answer
			return nil, err
		}
		if first {
			first, *below = false, ids
			continue
		}
		r.state = state(kind)
		rows = append(rows, r)
	}
	list := make([]*row, len(rows))
	for i := range rows {
		list[i] = &rows[i]
	}
	return list, answer.Err()
}

// id scans a UUID without a detour through its text, which is the way of a database/sql Scanner such as uuid.UUID.
type id uuid.UUID

// ScanUUID implements pgtype.UUIDScanner.
func (i *id) ScanUUID(v pgtype.UUID) error {
	*i = v.Bytes
	return nil
}

// name scans a text that is the same in many rows.
type name struct {
	sc *scanner
	to *string
}

// ScanBytes implements pgtype.BytesScanner.
func (n name) ScanBytes(text []byte) error {
	known, there := n.sc.names[string(text)]
	if !there {
		known = string(text)
		if n.sc.names == nil || len(n.sc.names) >= maxNames {
			n.sc.names = make(map[string]string)
		}
		n.sc.names[known] = known
	}
	*n.to = known
	return nil
}
