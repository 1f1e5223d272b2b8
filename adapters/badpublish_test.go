package adapters_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
)

// published returns what a publish over a client that opens is told, within its deadline.
// class nil = any.
func published(t *testing.T, name string, config adapters.Config, class error) string {
	t.Helper()
	var err error
	for range 5 {
		err = publishOnce(t, name, config)
		// A refusal that may pass is tried again until the end of the time, which may come
		// in the middle of a try: which of the two is told is a race.
		if err == nil || !errors.Is(class, core.ErrTransient) || !strings.Contains(err.Error(), "context deadline exceeded") {
			break
		}
	}
	if err == nil {
		t.Errorf("%s: no error", name)
		return "no error"
	}
	if class != nil && !errors.Is(err, class) {
		t.Errorf("%s: want class %v: %v", name, class, err)
	}
	return stable(describe(t, err))
}

func publishOnce(t *testing.T, name string, config adapters.Config) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := adapters.Open(ctx, config)
	if err != nil {
		t.Errorf("%s: Open: %v", name, err)
		return err
	}
	defer func() { _ = client.Close(context.WithoutCancel(ctx)) }()
	began := time.Now()
	err = client.Publish(ctx, core.Queue("tickets"), &core.Message{ID: "1", Body: []byte("margherita")})
	inTime(t, name, began, patience)
	return err
}
