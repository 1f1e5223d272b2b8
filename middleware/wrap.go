package middleware

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/varal-go/varal/core"
)

// Wrap adds a handler wrapper of the application. Wrappers run by name, whatever the
// order of listing.
func Wrap(name string, wrap func(core.Handler) core.Handler) core.Layer {
	return core.Layer{Name: "Wrap " + name, Edit: func(p *core.Policy) error {
		p.Wrappers = append(p.Wrappers, core.Wrapper{Name: name, Stage: core.StageUser, Wrap: wrap})
		return nil
	}}
}

// Recover calls onPanic for a handler that panicked, with the panic's value and
// stack, and fails the attempt with the error it returns (nil = a plain one). Without
// this layer a panic is a failed attempt too; it only adds the call.
func Recover(onPanic func(ctx context.Context, d *core.Delivery, value any, stack []byte) error) core.Layer {
	return core.Layer{Name: "Recover", Edit: func(p *core.Policy) error {
		p.Wrappers = append(p.Wrappers, core.Wrapper{Name: "Recover", Stage: core.StageGuard, Wrap: func(next core.Handler) core.Handler {
			return func(ctx context.Context, d *core.Delivery) (err error) {
				defer func() {
					if r := recover(); r != nil {
						if err = onPanic(ctx, d, r, debug.Stack()); err == nil {
							err = fmt.Errorf("panic: %v", r)
						}
					}
				}()
				return next(ctx, d)
			}
		}})
		return nil
	}}
}

// Log writes one line for each attempt: failures as warnings, the rest at debug
// level. Headers, keys and bodies are not written. nil = slog.Default().
func Log(l *slog.Logger) core.Layer {
	if l == nil {
		l = slog.Default()
	}
	return core.Layer{Name: "Log", Edit: func(p *core.Policy) error {
		p.Wrappers = append(p.Wrappers, core.Wrapper{Name: "Log", Stage: core.StageLog, Wrap: func(next core.Handler) core.Handler {
			return func(ctx context.Context, d *core.Delivery) error {
				start := time.Now()
				err := next(ctx, d)
				level := slog.LevelDebug
				if err != nil {
					level = slog.LevelWarn
				}
				l.LogAttrs(ctx, level, "handled", slog.String("source", d.Source.String()), slog.String("group", d.Group),
					slog.String("partition", d.Partition), slog.Int64("offset", d.Offset), slog.String("id", quote(d.ID)),
					slog.Int("attempt", d.Attempt), slog.Duration("took", time.Since(start)), slog.Any("error", err))
				return err
			}
		}})
		return nil
	}}
}

// quote keeps a message's text from forging log lines.
func quote(s string) string {
	if len(s) > 256 {
		s = s[:256]
	}
	return fmt.Sprintf("%q", s)
}
