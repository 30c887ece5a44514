package admin

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// File keeps events in a file, as lines like those of [KeepLines], compressed where its name ends in .gz.
//
// It grows by whole batches, each on the disk before its events are deleted. What a failure has left of a batch is cut off at once, so that what
// is appended behind it can be read. What the end of the process or of the machine has left is moved to a file beside it, PATH.torn, by
// the next batch.
type File struct {
	file   *os.File
	zip    bool
	made   bool
	end    extent // up to where it was whole when it was opened
	torn   int64  // bytes that it had behind that
	mended bool   // it ends there now
}

// writeAtOnce is how much goes to the disk in one piece: what a process that is killed has written of a batch of usual size is all or nothing.
const writeAtOnce = 1 << 20

// OpenFile opens a file to keep events in, or makes it. It is an error where that holds something else or is damaged, and while somebody
// else keeps events in it. It changes nothing in a file that is there. Close has to be called, which removes a file that was made and has remained
// empty.
func OpenFile(path string) (*File, error) {
	before, err := os.Stat(path)
	if err == nil && !before.Mode().IsRegular() { // asked before, since opening a pipe waits for its reader
		return nil, errNotRegular
	}
	f := &File{zip: strings.HasSuffix(path, ".gz"), made: errors.Is(err, fs.ErrNotExist)}
	if f.file, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		return nil, cause(err)
	}
	if err := f.begin(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// CheckFile is an error where [OpenFile] would be one, but for somebody else who keeps events there at the moment. It changes nothing, and stands in
// nobody's way.
func CheckFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		trial, err := os.CreateTemp(filepath.Dir(path), ".outbox-")
		if err != nil {
			return cause(err)
		}
		return cause(errors.Join(trial.Close(), os.Remove(trial.Name())))
	case err != nil:
		return cause(err)
	case !info.Mode().IsRegular():
		return errNotRegular
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return cause(err)
	}
	f := &File{file: file, zip: strings.HasSuffix(path, ".gz")}
	return errors.Join(f.look(), f.Close())
}

var errNotRegular = errors.New("it is not a regular file")

func (f *File) begin() error {
	if err := lockFile(f.file); err != nil {
		f.made = false // it may be somebody else's by now
		return err
	}
	if err := f.inPlace(); err != nil { // whoever had the lock has removed it
		f.made = false
		return err
	}
	if f.made {
		syncDirectory(filepath.Dir(f.file.Name()))
	}
	return f.look()
}

// inPlace is an error where the file is not where its name says any more.
func (f *File) inPlace() error {
	opened, err := f.file.Stat()
	if err != nil {
		return cause(err)
	}
	if named, err := os.Stat(f.file.Name()); err != nil || !os.SameFile(named, opened) {
		return errors.New("it was moved or removed meanwhile, try again")
	}
	return nil
}

// look finds out up to where the file is whole.
func (f *File) look() error {
	size, err := f.file.Seek(0, io.SeekEnd)
	if err != nil {
		return cause(err)
	}
	find := wholeLines
	if f.zip {
		find = wholeMembers
	}
	f.end, err = find(f.file, size)
	f.torn = size - f.end.whole
	return err
}

// Torn is how many bytes behind its last whole batch the file had when it was opened. The next batch has them moved to the file PATH.torn. Where a
// run was broken off, as its events were not deleted then, they are of no use.
func (f *File) Torn() int64 { return f.torn }

// mend has the file end where it is whole.
func (f *File) mend() error {
	if f.mended {
		return nil
	}
	if f.torn > 0 {
		aside, err := os.OpenFile(f.file.Name()+".torn", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(aside, io.NewSectionReader(f.file, f.end.whole, f.torn))
		if err := errors.Join(err, aside.Sync(), aside.Close()); err != nil {
			return err
		}
		if err := f.file.Truncate(f.end.whole); err != nil {
			return cause(err)
		}
	}
	if f.end.open {
		if _, err := f.file.WriteString("\n"); err != nil {
			return cause(err)
		}
	}
	f.mended = true
	return nil
}

// Keep is a [Keep]. It is an error where the file has been moved or removed since.
func (f *File) Keep(ctx context.Context, tx pgx.Tx, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	if err := f.mend(); err != nil {
		return err
	}
	whole, err := f.file.Seek(0, io.SeekEnd)
	if err != nil {
		return cause(err)
	}
	if err = f.append(ctx, tx, ids); err == nil {
		err = errors.Join(f.file.Sync(), f.inPlace())
	}
	if err != nil {
		return errors.Join(cause(err), cause(f.file.Truncate(whole)))
	}
	return nil
}

func (f *File) append(ctx context.Context, tx pgx.Tx, ids []int64) error {
	w := bufio.NewWriterSize(f.file, writeAtOnce)
	if !f.zip {
		return errors.Join(writeLines(ctx, w, tx, ids), w.Flush())
	}
	zip := gzip.NewWriter(w)
	zip.Comment = ours
	if err := writeLines(ctx, zip, tx, ids); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	if _, err := w.Write(seal); err != nil {
		return err
	}
	return w.Flush()
}

// Close closes the file.
func (f *File) Close() error {
	var err error
	if size, seekErr := f.file.Seek(0, io.SeekEnd); f.made && seekErr == nil && size == 0 && f.inPlace() == nil {
		err = os.Remove(f.file.Name())
	}
	return cause(errors.Join(err, f.file.Close()))
}

// cause is an error of the file system without the path, which whoever opened the file has.
func cause(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		return path.Err
	}
	return err
}

// syncDirectory has a file that was made outlive a crash of the machine. Not every system can do that to a directory.
func syncDirectory(path string) {
	if dir, err := os.Open(path); err == nil {
		_ = dir.Sync()
		_ = dir.Close()
	}
}

// errForeign is a file that nobody who looks for kept events wants to have changed.
func errForeign(what string, at int64) error {
	return fmt.Errorf("it is there already, and %s at byte %d: give another file", what, at)
}
