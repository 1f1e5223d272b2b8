package rabbitmq_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
)

func TestApply(t *testing.T) {
	t.Parallel()
	d := open(t)
	ctx := within(t, 30*time.Second)
	name := fmt.Sprintf("test.apply.%d", time.Now().UnixNano())
	topic := driver.Destination{Shape: driver.Topic, Name: name + ".t"}
	keyed := driver.Destination{Shape: driver.Queue, Name: name + ".k", Partitions: 3}
	stream := driver.Destination{Shape: driver.Stream, Name: name + ".s"}
	want := []driver.Resource{
		{Destination: topic.ForGroup("g"), Options: map[string]string{"bind": "a.*", "max-length": "1000"}}, // before its topic
		{Destination: topic}, {Destination: keyed}, {Destination: stream, Options: map[string]string{"max-age": "1h"}}, {Destination: stream.ForGroup("g")},
	}
	const objects = 2 + 3*2 + 1 + 1 + 2
	apply := func(mode driver.Mode) []driver.Change {
		t.Helper()
		cs, err := d.Admin().Apply(ctx, want, mode)
		if err != nil {
			t.Fatal(mode, err)
		}
		return cs
	}
	for _, mode := range []driver.Mode{driver.Verify, driver.Plan} {
		cs := apply(mode)
		if len(cs) != objects || cs[0].Field != "exists" || cs[0].Done {
			t.Errorf("%v: %d changes, %+v", mode, len(cs), cs)
		}
	}
	var wg sync.WaitGroup // a race of two
	for range 4 {
		wg.Go(func() {
			if _, err := d.Admin().Apply(ctx, want, driver.Create); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, mode := range []driver.Mode{driver.Create, driver.Verify, driver.Plan} {
		if cs := apply(mode); len(cs) != 0 {
			t.Errorf("%v of what is there: %+v", mode, cs)
		}
	}
	want[0].Options["max-length"] = "2000"
	cs := apply(driver.Verify)
	if len(cs) != 1 || cs[0].Field != "x-max-length" || cs[0].Have != "1000" || cs[0].Want != "2000" || cs[0].Done {
		t.Errorf("a difference: %+v", cs)
	}
	publish(t, d, keyed, 0, 30, func(i int) string { return fmt.Sprint(i) })
	st, err := d.Admin().Stats(ctx, driver.Resource{Destination: keyed})
	if err != nil || st.Ready != 30 || len(st.Partitions) != 3 || st.InFlight != -1 {
		t.Errorf("stats %+v %v", st, err)
	}
	if err := d.Admin().Seek(ctx, driver.Resource{Destination: keyed}, driver.Position{Kind: driver.Earliest}); !errors.Is(err, driver.Unsupported) {
		t.Errorf("seek of a queue: %v", err)
	}
	if cs := apply(driver.Delete); len(cs) != objects {
		t.Errorf("delete: %+v", cs)
	}
	if cs := apply(driver.Delete); len(cs) != 0 {
		t.Errorf("second delete: %+v", cs)
	}
	for _, opts := range []map[string]string{{"x-odd": "1"}, {"bind": "#"}, {"max-age": "1h"}} {
		_, err := d.Admin().Apply(ctx, []driver.Resource{{Destination: driver.Destination{Shape: driver.Queue, Name: name}, Options: opts}}, driver.Verify)
		if !errors.Is(err, driver.Unsupported) {
			t.Errorf("%v: %v", opts, err)
		}
	}
}

func TestInspect(t *testing.T) {
	t.Parallel()
	d := open(t)
	q := fresh(t, d, driver.Queue, 2)
	inspect := func(d driver.Driver, r driver.Resource) []driver.Finding {
		t.Helper()
		fs, err := d.Admin().Inspect(within(t, 10*time.Second), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fs {
			if f.Rule == "" || f.Subject == "" || f.Seen == "" || f.Wanted == "" || f.Fix == "" {
				t.Errorf("a finding that does not say all: %+v", f)
			}
		}
		return fs
	}
	if fs := inspect(d, driver.Resource{Destination: q}); len(fs) != 0 {
		t.Errorf("of what is as wanted: %+v", fs)
	}
	fs := inspect(d, driver.Resource{Destination: q, Options: map[string]string{"max-length": "5"}})
	if len(fs) != 2 || !fs[0].Inspected || fs[0].Subject != "queue "+q.Name+".0" || !strings.Contains(fs[0].Seen, "x-max-length") || fs[0].Wanted != "5" {
		t.Errorf("another length: %+v", fs)
	}
	fs = inspect(d, driver.Resource{Destination: driver.Destination{Shape: driver.Queue, Name: q.Name + ".none"}})
	if len(fs) != 1 || !fs[0].Inspected || fs[0].Seen != "exists: no" {
		t.Errorf("what is missing: %+v", fs)
	}
	classic := open(t, func(c *rabbitmq.Config) { c.Classic = true })
	plain := fresh(t, classic, driver.Queue, 0)
	if fs := inspect(classic, driver.Resource{Destination: plain}); len(fs) != 1 || fs[0].Rule != "rabbitmq-classic" {
		t.Errorf("classic: %+v", fs)
	}
	if _, err := d.Admin().Inspect(within(t, 10*time.Second), driver.Resource{Destination: q, Options: map[string]string{"odd": "1"}}); !errors.Is(err, driver.Unsupported) {
		t.Errorf("an unknown option: %v", err)
	}
}

// A service whose user may not configure works on what was made for it, and one that may
// not read or write is told so.
func TestLeastPrivilege(t *testing.T) {
	user := fmt.Sprintf("u%d", time.Now().UnixNano())
	ctl(t, "add_user", user, "pw")
	defer ctl(t, "delete_user", user)
	admin := open(t)
	keyed := fresh(t, admin, driver.Queue, 2)
	plain := fresh(t, admin, driver.Queue, 0)
	topic := fresh(t, admin, driver.Topic, 0, "g")
	stream := fresh(t, admin, driver.Stream, 0, "g")
	as := func(configure, write, read string) driver.Driver {
		ctl(t, "set_permissions", user, configure, write, read)
		return open(t, func(c *rabbitmq.Config) {
			c.URLs[0] = strings.Replace(c.URLs[0], "guest:guest", user+":pw", 1)
		})
	}
	d := as("^$", ".*", ".*")
	ctx := within(t, 60*time.Second)
	rs := []driver.Resource{{Destination: keyed}, {Destination: plain}, {Destination: topic}, {Destination: topic.ForGroup("g")}, {Destination: stream.ForGroup("g")}}
	if cs, err := d.Admin().Apply(ctx, rs, driver.Verify); err != nil || len(cs) > 0 {
		t.Errorf("verify: %v %v", cs, err)
	}
	if fs, err := d.Admin().Inspect(ctx, rs[1]); err != nil || len(fs) != 1 || fs[0].Inspected {
		t.Errorf("inspect: %+v %v", fs, err)
	}
	if _, err := d.Admin().Apply(ctx, []driver.Resource{{Destination: driver.Destination{Shape: driver.Queue, Name: "test.new"}}}, driver.Create); !errors.Is(err, driver.Denied) {
		t.Errorf("create: %v", err)
	}
	for _, to := range []driver.Destination{keyed, plain, topic, stream} {
		publish(t, d, to, 0, 1, nil)
		c := subscribe(t, d, driver.Subscription{From: to, Group: "g"})
		settle(t, c, driver.Ack, receive(t, c, 1, 10)...)
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	d = as("^$", "^$", "^$")
	if _, err := d.Subscribe(ctx, driver.Subscription{From: plain}); !errors.Is(err, driver.Denied) {
		t.Errorf("subscribe: %v", err)
	}
	if err := d.Publish(ctx, topic, []*driver.Message{message(1, "")}); !errors.Is(err, driver.Denied) {
		t.Errorf("publish: %v", err)
	}
}
