package memory_test

import (
	"strings"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/memory"
	"github.com/varal-go/varal/core/driver"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	c, err := memory.ParseURL("memory:?lease=2s&max_bytes=5&max_messages=6&max_stored=7&retention=8h")
	if err != nil || c.Broker != nil || c.Lease != 2*time.Second || c.MaxBytes != 5 || c.MaxMessages != 6 || c.MaxStored != 7 || c.Retention != 8*time.Hour {
		t.Errorf("%+v, %v", c, err)
	}
	for raw, names := range map[string]string{
		"memory://u:secret@x/%zz":     "memory:NAME",
		"memory:x#secret":             "#",
		"memory:?leese=2s":            "leese",
		"memory:?lease=soon":          "lease",
		"memory:?lease=1s&lease=2s":   "lease",
		"memory:x?max_bytes=lots":     "max_bytes",
		"kafka://x":                   "memory:NAME",
		"memory:?max_stored=1;lease=": "parameters",
	} {
		_, err := memory.ParseURL(raw)
		if err == nil || !strings.Contains(err.Error(), names) || driver.ClassOf(err) != driver.Permanent || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want an error that names %s", raw, err, names)
		}
	}
}

func TestURLWithPasswordIsDenied(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"memory://user:secret@x", "memory://user:secret@", "memory://secret@x?lease=1s"} {
		_, err := memory.ParseURL(raw)
		wantClass(t, err, driver.Denied)
		if strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "password") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}

func TestNamedBrokerIsShared(t *testing.T) {
	t.Parallel()
	var drivers []driver.Driver
	for _, raw := range []string{"memory:TestNamed", "memory://TestNamed?lease=3s", "memory:other", "memory:", "memory:"} {
		c, err := memory.ParseURL(raw)
		if err != nil {
			t.Fatal(err)
		}
		drivers = append(drivers, open(t, c))
	}
	apply(t, drivers[0], driver.Create, driver.Resource{Destination: queue("q")})
	publish(t, drivers[1], queue("q"), msg("1"))
	for _, d := range drivers[2:] {
		wantClass(t, d.Publish(t.Context(), queue("q"), []*driver.Message{msg("1")}), driver.NotFound)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for field, c := range map[string]memory.Config{
		"Lease": {Lease: -1}, "MaxBytes": {MaxBytes: -1}, "MaxMessages": {MaxMessages: -1}, "MaxStored": {MaxStored: -1},
	} {
		_, err := memory.Open(t.Context(), c)
		if driver.ClassOf(err) != driver.Permanent || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
