package core

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/varal-go/varal/core/driver"
)

// provisioned remembers which destinations were checked, so that a publish asks the
// broker once per destination and not once per message.
type provisioned struct {
	done      sync.Map // Destination -> struct{}, as the broker knows it
	published sync.Map // Destination -> struct{}, as the application calls it
}

// ensure checks or creates a destination as Options.Provision says. Only success is
// remembered: a destination that is missing now may be created later.
func (c *Client) ensure(ctx context.Context, to Destination) error {
	if c.o.Provision == ProvisionNone {
		return nil
	}
	if _, ok := c.provision.done.Load(to); ok {
		return nil
	}
	admin := c.d.Admin()
	if admin == nil {
		return nil
	}
	mode := driver.Verify
	if c.o.Provision == ProvisionCreate {
		mode = driver.Create
	}
	changes, err := admin.Apply(ctx, []driver.Resource{{Destination: to}}, mode)
	if err != nil {
		return fmt.Errorf("check %s: %w", to, err)
	}
	if err := unmet(to, changes); err != nil {
		return err
	}
	c.provision.done.Store(to, struct{}{})
	return nil
}

// unmet turns the differences that Apply left into an error.
func unmet(to Destination, changes []driver.Change) error {
	var diffs []string
	for _, ch := range changes {
		if ch.Done {
			continue
		}
		if ch.Field == "exists" {
			return driver.Errorf("check "+to.String(), driver.NotFound,
				"%s does not exist: create it with the broker's tools, or set provision: create (Config.Provision = core.ProvisionCreate, --create)", ch.Subject)
		}
		diffs = append(diffs, fmt.Sprintf("%s of %s is %s, wanted %s", ch.Field, ch.Subject, ch.Have, ch.Want))
	}
	if len(diffs) == 0 {
		return nil
	}
	return driver.Errorf("check "+to.String(), driver.Conflict, "it exists with other settings: %s", strings.Join(diffs, "; "))
}
