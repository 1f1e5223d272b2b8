package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varal-go/varal/core"
	"github.com/varal-go/varal/middleware/control"
)

// defaultControl is where the examples and consume --control serve.
const defaultControl = "http://127.0.0.1:7070"

const sessionsHelp = `Asks a running service, through the control handler that it serves (middleware/control, or
varal consume --control), what its keys wait for: halted and blocked ones first, then by age.

resume gives the first message of a halted key one more attempt, replay all of them again, and
skip sends it to the dead letter and goes on behind it.

`

// watching is the options of sessions.
type watching struct {
	control, subscription string
	limit                 int
	watch, asJSON         bool
	every                 time.Duration
}

func (s *session) sessions() *cobra.Command {
	var o watching
	c := &cobra.Command{
		Use:   "sessions",
		Short: "Which keys of a running service are blocked, since when and on what",
		Long:  sessionsHelp + exitCodes,
		Example: "  varal sessions --control http://127.0.0.1:7070 --watch\n" +
			"  varal sessions skip order-17 --subscription tickets/kitchen",
		Args: known,
		RunE: func(c *cobra.Command, _ []string) error { return s.runSessionsList(c.Context(), &o) },
	}
	p := c.PersistentFlags()
	p.StringVar(&o.control, "control", defaultControl, "where the service serves its control handler")
	p.StringVar(&o.subscription, "subscription", "", "only this one; needed for a verb where there are several")
	f := c.Flags()
	f.IntVar(&o.limit, "limit", 20, "show at most so many keys of a subscription")
	f.BoolVar(&o.watch, "watch", false, "show it again every --every until stopped")
	f.DurationVar(&o.every, "every", time.Second, "with --watch")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON object a line")
	for verb, short := range map[string]string{
		"resume": "Give the first message of a halted key one more attempt",
		"replay": "Give the first message of a halted key all its attempts again",
		"skip":   "Send the first message of a halted key to the dead letter and go on behind it",
	} {
		c.AddCommand(&cobra.Command{
			Use: verb + " KEY", Short: short, Long: sessionsHelp + exitCodes,
			Example: "  varal sessions " + verb + " order-17",
			Args: func(_ *cobra.Command, args []string) error {
				if len(args) != 1 || args[0] == "" {
					return usage("%s needs one KEY (see varal sessions)", verb)
				}
				return nil
			},
			RunE: func(c *cobra.Command, args []string) error { return s.actOnKey(c.Context(), &o, verb, args[0]) },
		})
	}
	return c
}

func (s *session) runSessionsList(ctx context.Context, o *watching) error {
	if o.limit < 1 {
		return usage("--limit %d is less than 1", o.limit)
	}
	if o.every < 100*time.Millisecond {
		return usage("--every %v is less than 100ms", o.every)
	}
	for {
		list, err := o.fetch(ctx)
		if err != nil {
			return err
		}
		if err := s.printSessionKeys(list, o); err != nil || !o.watch {
			return err
		}
		t := time.NewTimer(o.every)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil
		}
	}
}

// fetch asks for the keys.
func (o *watching) fetch(ctx context.Context) (list []control.SubscriptionKeys, err error) {
	q := url.Values{"limit": {strconv.Itoa(o.limit)}}
	if o.subscription != "" {
		q.Set("subscription", o.subscription)
	}
	err = o.call(ctx, http.MethodGet, "/keys", q, &list)
	return list, err
}

// call makes one request of the control handler and decodes its answer.
func (o *watching) call(ctx context.Context, method, path string, q url.Values, into any) error {
	base, err := url.Parse(o.control)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return usage("--control %.80q is no URL like %s", o.control, defaultControl)
	}
	base.Path = strings.TrimSuffix(base.Path, "/") + path
	base.RawQuery = q.Encode()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, base.String(), nil)
	if err != nil {
		return usage("--control: %v", err)
	}
	r.Header.Set("X-Varal-Control", "varal")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return &coded{Unreachable, fmt.Errorf("no control handler at %s: %w", base.Redacted(), errors.Unwrap(err))}
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(answer.Body, 64<<20))
	switch {
	case err != nil:
		return &coded{Unreachable, fmt.Errorf("reading from %s: %w", base.Redacted(), err)}
	case answer.StatusCode != http.StatusOK:
		return &coded{Failed, fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(body)))}
	}
	if err := json.Unmarshal(body, into); err != nil {
		return &coded{Failed, fmt.Errorf("%s does not answer as a control handler: %w", base.Redacted(), err)}
	}
	return nil
}

// actOnKey carries out a verb; without --subscription, on the only one there is.
func (s *session) actOnKey(ctx context.Context, o *watching, verb, key string) error {
	name := o.subscription
	if name == "" {
		o.limit = 1
		list, err := o.fetch(ctx)
		if err != nil {
			return err
		}
		if len(list) != 1 {
			var names []string
			for _, l := range list {
				names = append(names, l.Subscription)
			}
			return usage("--subscription is missing: there are %d (%s)", len(list), strings.Join(names, ", "))
		}
		name = list[0].Subscription
	}
	var st core.Status
	if err := o.call(ctx, http.MethodPost, "/keys/"+verb, url.Values{"subscription": {name}, "key": {key}}, &st); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.out, "%s %s: done\n", verb, strconv.Quote(key))
	return err
}

func (s *session) printSessionKeys(list []control.SubscriptionKeys, o *watching) error {
	if o.asJSON {
		return s.printJSON(list)
	}
	if o.watch && s.screen {
		if _, err := io.WriteString(s.out, "\x1b[H\x1b[2J"); err != nil {
			return err
		}
	}
	for _, l := range list {
		if _, err := fmt.Fprintf(s.out, "%s  %d keys with unfinished messages\n", s.paint(bold, l.Subscription), l.Total); err != nil {
			return err
		}
		if err := s.printKeys(l.Keys); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) printKeys(keys []core.KeyStatus) error {
	if len(keys) == 0 {
		return nil
	}
	rows := [][]string{{" ", "key", "state", "for", "attempt", "waiting", "message", "at", "error"}}
	for _, k := range keys {
		at := k.Partition
		if k.Offset >= 0 {
			at += "@" + strconv.FormatInt(k.Offset, 10)
		}
		rows = append(rows, []string{
			" ", plain(k.Key, 32), k.State, short(time.Since(k.Since).Round(time.Second)), strconv.Itoa(k.Attempt),
			strconv.Itoa(k.Waiting), plain(k.ID, 32), at, plain(k.Error, 60),
		})
	}
	colour := func(row, col int) string {
		switch {
		case row == 0:
			return dim
		case col != 2:
			return ""
		}
		return map[string]string{"halted": red, "blocked": red, "backoff": bold}[keys[row-1].State]
	}
	return s.table(s.out, rows, func(col int) bool { return col == 4 || col == 5 }, colour)
}

// serveControl serves the control handler of client until stop is called. It has no
// authentication, so it listens on loopback only.
func serveControl(ctx context.Context, client *core.Client, addr string) (stop func(), err error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, usage("--control %.80q: %v", addr, err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil, usage("--control %.80q is no loopback address: the handler has no authentication, so mount control.Handler behind your own", addr)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, usage("--control: %v", err)
	}
	srv := &http.Server{Handler: control.Handler(client), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(l) // until Close
	}()
	return func() {
		_ = srv.Close()
		<-ended
	}, nil
}

// plain is text from a message as a terminal may show it.
func plain(text string, limit int) string {
	quoted := strconv.Quote(text)
	quoted = quoted[1 : len(quoted)-1]
	if r := []rune(quoted); len(r) > limit {
		quoted = string(r[:limit-1]) + "…"
	}
	return quoted
}
