package admin

import (
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
// It grows by whole batches, each on the disk before its events are deleted. What a failure or the end of the process has left of a batch is cut
// off, at once or by the next [OpenFile], so that what is appended behind it can be read.
type File struct {
	file *os.File
	zip  bool
	made bool
	cut  int64
}

// OpenFile opens a file to keep events in, or makes it. It is an error where that holds something else or is damaged, and while somebody
// else keeps events in it. Close has to be called, which removes a file that was made and has remained empty.
func OpenFile(path string) (*File, error) {
	before, err := os.Stat(path)
	if err == nil && !before.Mode().IsRegular() { // asked before, since opening a pipe waits for its reader
		return nil, errors.New("it is not a regular file")
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
	return f.mend()
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

// mend cuts off a batch that was not finished.
func (f *File) mend() error {
	size, err := f.file.Seek(0, io.SeekEnd)
	if err != nil {
		return cause(err)
	}
	find := wholeLines
	if f.zip {
		find = wholeMembers
	}
	found, err := find(f.file, size)
	if err != nil {
		return err
	}
	if f.cut = size - found.whole; f.cut > 0 {
		return cause(f.file.Truncate(found.whole))
	}
	if found.open {
		_, err = f.file.WriteString("\n")
	}
	return cause(err)
}

// Cut is how many bytes OpenFile has cut off: of a batch that an earlier run had not finished, whose events it did not delete.
func (f *File) Cut() int64 { return f.cut }

// Keep is a [Keep]. It is an error where the file has been moved or removed since.
func (f *File) Keep(ctx context.Context, tx pgx.Tx, ids []int64) error {
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
	if !f.zip {
		return writeLines(ctx, f.file, tx, ids)
	}
	zip := gzip.NewWriter(f.file)
	zip.Comment = ours
	if err := writeLines(ctx, zip, tx, ids); err != nil {
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	_, err := f.file.Write(seal)
	return err
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
