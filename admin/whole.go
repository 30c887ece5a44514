package admin

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// Up to where a file of kept events is whole, and whether it is one.

// extent is up to where a file is whole, and whether a line's end is missing there.
type extent struct {
	whole int64
	open  bool
}

// wholeLines looks at a file of lines: at its first, and at its end.
func wholeLines(file io.ReaderAt, size int64) (extent, error) {
	start, err := lastLine(file, size)
	if err != nil {
		return extent{}, err
	}
	if start > 0 && !isEvent(io.NewSectionReader(file, 0, start)) {
		return extent{}, errForeign("holds something else than events", 0)
	}
	if start == size {
		return extent{whole: size}, nil
	}
	begin := make([]byte, min(2, size-start))
	if _, err := file.ReadAt(begin, start); err != nil {
		return extent{}, cause(err)
	}
	if !bytes.HasPrefix([]byte(`{"`), begin) {
		return extent{}, errForeign("holds something else than events", start)
	}
	tail := make([]byte, size-start)
	if _, err := file.ReadAt(tail, start); err != nil {
		return extent{}, cause(err)
	}
	if json.Valid(tail) && isEvent(bytes.NewReader(tail)) {
		return extent{whole: size, open: true}, nil
	}
	return extent{whole: start}, nil
}

// isEvent tells whether text begins with a kept event.
func isEvent(text io.Reader) bool {
	var event struct{ ID *int64 }
	return json.NewDecoder(text).Decode(&event) == nil && event.ID != nil
}

// lastLine returns where what follows the last line's end begins.
func lastLine(file io.ReaderAt, size int64) (int64, error) {
	block := make([]byte, 64<<10)
	for end := size; end > 0; {
		start := max(0, end-int64(len(block)))
		some := block[:end-start]
		if _, err := file.ReadAt(some, start); err != nil && !errors.Is(err, io.EOF) {
			return 0, cause(err)
		}
		if i := bytes.LastIndexByte(some, '\n'); i >= 0 {
			return start + int64(i) + 1, nil
		}
		end = start
	}
	return 0, nil
}

// ours marks the gzip members with events.
const ours = "outbox"

// seal ends each batch: an empty gzip member. A file that ends in it is whole, and need not be unpacked to know that.
var seal = func() []byte {
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	zip.Comment = ours + ": whole"
	_ = zip.Close() // to memory
	return b.Bytes()
}()

// wholeMembers looks at a gzip file: at its end, and, where that is not as a batch leaves it, at all of it.
func wholeMembers(file io.ReaderAt, size int64) (e extent, err error) {
	end := make([]byte, len(seal))
	if _, err := file.ReadAt(end, max(0, size-int64(len(seal)))); err == nil && bytes.Equal(end, seal) || size == 0 {
		return extent{whole: size}, nil
	}
	if _, err := file.ReadAt(end[:min(2, size)], 0); err != nil || !bytes.HasPrefix(magic, end[:min(2, size)]) {
		return e, errForeign("is not compressed", 0)
	}
	read := &counter{from: bufio.NewReader(io.NewSectionReader(file, 0, size))}
	var zip gzip.Reader
	for {
		if err = zip.Reset(read); err != nil {
			break
		}
		zip.Multistream(false)
		mine := strings.HasPrefix(zip.Comment, ours)
		if e.whole == 0 && !mine && !isEvent(&zip) {
			return e, errForeign("holds something else than events", 0)
		}
		if _, err = io.Copy(io.Discard, &zip); err != nil {
			if !mine && errors.Is(err, io.ErrUnexpectedEOF) {
				err = gzip.ErrChecksum // of another program, which may have deleted by it
			}
			break
		}
		e.whole = read.n
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return e, nil
	}
	return e, errForeign("is damaged", e.whole)
}

// magic begins every gzip member.
var magic = []byte{0x1f, 0x8b}

// counter counts what is read through it. Gzip reads no further than it has to from what has ReadByte.
type counter struct {
	from *bufio.Reader
	n    int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n += int64(n)
	return n, err
}

func (c *counter) ReadByte() (byte, error) {
	b, err := c.from.ReadByte()
	if err == nil {
		c.n++
	}
	return b, err
}
