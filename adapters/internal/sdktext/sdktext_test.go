package sdktext_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/core/driver"
)

func TestRewrite(t *testing.T) {
	t.Parallel()
	theirs := func(s string) error { return sdktext.Mark(errors.New(s)) }
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("ours"), "ours"},
		{theirs("EOF"), "<EOF>"},
		{driver.Errorf("open", driver.Denied, "is EOF the end? %w", theirs("EOF")), "open: is EOF the end? <EOF> (denied)"},
		{fmt.Errorf("ours: %w", errors.Join(theirs("a"), errors.New("b"), theirs("a"))), "ours: <a>\nb\n<a>"},
		{sdktext.Mark(driver.Errorf("op", driver.Denied, "ours: %w", theirs("x"))), "op: ours: <x> (denied)"},
	} {
		if got := sdktext.Rewrite(c.err, func(s string) string { return "<" + s + ">" }); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if sdktext.Mark(nil) != nil {
		t.Error("Mark(nil) is an error")
	}
	if !errors.Is(sdktext.Mark(io.EOF), io.EOF) {
		t.Error("the cause is lost")
	}
}
