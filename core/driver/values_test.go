package driver_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/varal-go/varal/core/driver"
)

func TestNamesOfEnums(t *testing.T) {
	t.Parallel()
	for want, v := range map[string]fmt.Stringer{
		"queue": driver.Queue, "topic": driver.Topic, "stream": driver.Stream,
		"ack": driver.Ack, "nack": driver.Nack, "return": driver.Return, "reject": driver.Reject, "extend": driver.Extend,
		"default": driver.Default, "earliest": driver.Earliest, "latest": driver.Latest, "at": driver.At, "since": driver.Since,
		"connected": driver.Connected, "disconnected": driver.Disconnected, "blocked": driver.Blocked,
		"unblocked": driver.Unblocked, "out of range": driver.OutOfRange, "gone": driver.Gone,
		"create": driver.Create, "verify": driver.Verify, "plan": driver.Plan, "delete": driver.Delete,
		"each": driver.Each, "up to": driver.UpTo,
		"per key": driver.PerKey, "per partition": driver.PerPartition,
	} {
		if v.String() != want {
			t.Errorf("%T %v, want %q", v, v, want)
		}
	}
	if driver.None.String() != "none" || driver.NoOrder.String() != "none" {
		t.Errorf("%q and %q, want none", driver.None, driver.NoOrder)
	}
	for _, v := range []fmt.Stringer{
		driver.Shape(0), driver.Stream + 1, driver.Disposition(0), driver.Hold + 1, driver.Since + 1,
		driver.EventKind(0), driver.Gone + 1, driver.Mode(0), driver.Delete + 1, driver.SettleMode(0), driver.None + 1,
		driver.PerPartition + 1, driver.NeedCount,
	} {
		if v.String() != "invalid" {
			t.Errorf("%T %d is called %q, want invalid", v, v, v)
		}
	}
}

func TestNeeds(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for n := range driver.NeedCount {
		name := n.String()
		if name == "" || seen[name] {
			t.Errorf("need %d has the name %q", n, name)
		}
		seen[name] = true
		if got, err := driver.ParseNeed(name); err != nil || got != n {
			t.Errorf("ParseNeed(%q) = %v, %v", name, got, err)
		}
		text, err := json.Marshal(n)
		var back driver.Need
		if err != nil || json.Unmarshal(text, &back) != nil || back != n {
			t.Errorf("need %s does not survive JSON: %s", n, text)
		}
	}
	if _, err := driver.ParseNeed("orderd"); err == nil {
		t.Error("an unknown need was parsed")
	}
}

func TestHas(t *testing.T) {
	t.Parallel()
	for n, c := range map[driver.Need]driver.Capabilities{
		driver.NeedDurable: {Durable: true}, driver.NeedReplay: {Replay: true}, driver.NeedPosition: {Replay: true},
		driver.NeedOrdered: {Order: driver.PerKey}, driver.NeedOrderedRetry: {Order: driver.PerPartition},
		driver.NeedSchedule: {Delay: 1}, driver.NeedDelayNack: {NackDelay: 1}, driver.NeedLease: {Lease: 1},
		driver.NeedDeadLetter: {DeadLetter: true}, driver.NeedCounts: {Counts: true}, driver.NeedTTL: {TTL: true},
		driver.NeedDedup: {Dedup: time.Minute}, driver.NeedPriority: {Priorities: 2}, driver.NeedTransactions: {Transactions: true},
	} {
		if !c.Has(n) || (driver.Capabilities{}).Has(n) {
			t.Errorf("%s: %v with it, %v without", n, c.Has(n), driver.Capabilities{}.Has(n))
		}
	}
	if (driver.Capabilities{}).Has(driver.NeedCount) {
		t.Error("there is a need beyond the last")
	}
}

func TestDestination(t *testing.T) {
	t.Parallel()
	d := driver.Destination{Shape: driver.Topic, Name: "pizzas"}
	if k := d.Keyed(8).ForGroup("billing"); k.Partitions != 8 || k.String() != "topic pizzas, group billing" {
		t.Errorf("%+v %s", k, k)
	}
	if d.Partitions != 0 || d.String() != "topic pizzas" { // d is a value
		t.Errorf("%+v %s", d, d)
	}
}

func TestMessage(t *testing.T) {
	t.Parallel()
	m := driver.Message{Key: "k1", Type: "not counted", Body: make([]byte, 10), Headers: []driver.Header{{Key: "a", Value: "1"}, {Key: "a", Value: "22"}, {Key: "e"}}}
	if m.Size() != 2+10+2+3+1 {
		t.Errorf("Size %d", m.Size())
	}
	if v, ok := m.Header("a"); v != "1" || !ok {
		t.Errorf("first a is %q, %v", v, ok)
	}
	if v, ok := m.Header("e"); v != "" || !ok {
		t.Errorf("e is %q, %v", v, ok)
	}
	if _, ok := m.Header("A"); ok {
		t.Error("header keys are folded")
	}
}
