package fail

import (
	"errors"
	"io"
	"testing"
)

// A function ends at its first error, and returns it as it is; what is no failure goes on as a panic.
func TestFail(t *testing.T) {
	err := Try(func() {
		If(nil)
		if Must(7, nil) != 7 {
			t.Error("another value")
		}
		During("outer", func() { If(io.EOF) })
		t.Error("it went on")
	})
	if !errors.Is(err, io.EOF) || err.Error() != "outer: EOF" {
		t.Errorf("got %v", err)
	}
	if err := Try(func() { Must(0, io.EOF) }); err != io.EOF {
		t.Errorf("got %v", err)
	}
	close := func() (err error) {
		defer Closing(&err, func() error { return io.ErrClosedPipe })
		return nil
	}
	if err := close(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
	defer func() {
		if r := recover(); r != "other" {
			t.Errorf("recovered %v", r)
		}
	}()
	_ = Try(func() { panic("other") })
}
