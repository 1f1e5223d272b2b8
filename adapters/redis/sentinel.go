package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core/driver"
)

// client returns one for all keys.
func (b *broker) client(conns int) goredis.UniversalClient {
	if b.cfg.Cluster {
		return b.cluster(conns)
	}
	return b.dial(b.options(conns))
}

// dial returns a client of one server that carries the hook. It connects when it is used:
// to the server, or with Sentinels to whatever they call the primary at that moment.
func (b *broker) dial(o *goredis.Options) *goredis.Client {
	var cl *goredis.Client
	if b.cfg.Sentinel == "" {
		cl = goredis.NewClient(o)
	} else {
		cl = goredis.NewFailoverClient(b.failover(o))
	}
	cl.AddHook(answers{})
	return cl
}

// failover is o for a client that asks Sentinels.
func (b *broker) failover(o *goredis.Options) *goredis.FailoverOptions {
	return &goredis.FailoverOptions{
		MasterName: b.cfg.Sentinel, SentinelAddrs: b.cfg.addrs(),
		SentinelUsername: b.cfg.SentinelUser, SentinelPassword: b.cfg.SentinelPassword,
		Username: o.Username, Password: o.Password, DB: o.DB, Protocol: o.Protocol,
		ClientName: o.ClientName, Dialer: o.Dialer, DialTimeout: o.DialTimeout, DialerRetries: o.DialerRetries,
		MaxRetries: o.MaxRetries, ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, PoolTimeout: o.PoolTimeout,
		ContextTimeoutEnabled: o.ContextTimeoutEnabled, PoolSize: o.PoolSize, DisableIdentity: o.DisableIdentity,
		OnConnect: onlyPrimary(o.OnConnect),
	}
}

// onlyPrimary refuses a connection to a server that is not the primary: for a moment after
// a failover a Sentinel may still name the old one, and a read there would see old things.
// It runs for the connections to the Sentinels as well, which are left alone.
func onlyPrimary(then func(context.Context, *goredis.Conn) error) func(context.Context, *goredis.Conn) error {
	return func(ctx context.Context, cn *goredis.Conn) error {
		cmd := goredis.NewSliceCmd(ctx, "role")
		err := cn.Process(ctx, cmd)
		if err != nil && offline(err) {
			return err
		}
		if role := cmd.Val(); err == nil && len(role) > 0 { // else the login may not ask
			switch text(role[0]) {
			case "sentinel":
				return nil
			case "master":
			default:
				return &dialError{fmt.Errorf("the server that the Sentinels name is a %s and not the primary: a failover is under way", text(role[0]))}
			}
		}
		if then == nil {
			return nil
		}
		return then(ctx, cn)
	}
}

// askSentinels finds out why there would be no primary, for the error of Open: go-redis
// tells of all reasons only that no Sentinel is reachable.
func (b *broker) askSentinels(ctx context.Context, op string) error {
	addrs := b.cfg.addrs()
	errs := make([]error, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() { errs[i] = b.askSentinel(ctx, addr) })
	}
	wg.Wait()
	var worst error
	class := driver.Transient
	for i, err := range errs {
		switch {
		case err == nil: // one is enough
			return nil
		case errors.Is(err, goredis.Nil):
			return driver.Errorf(op, driver.NotFound, "the Sentinel at %s knows no primary of the name %q: Config.Sentinel (sentinel= in the URL) is the name in its line \"sentinel monitor\"", addrs[i], b.cfg.Sentinel)
		case isUnknownCommand(err):
			return driver.Errorf(op, driver.Permanent, "%s is a server and no Sentinel: name the Sentinels, or leave sentinel= out (Config.Sentinel)", addrs[i])
		}
		if c := classOf(err); worst == nil || c == driver.Denied && class != driver.Denied {
			worst = fmt.Errorf("the Sentinel at %s: %w", addrs[i], b.wantsTLS(sdktext.Mark(err)))
			class = driver.Transient
			if c != driver.Ambiguous { // a question changes nothing
				class = c
			}
		}
	}
	if class == driver.Denied && tlsconf.IsCertificateError(worst) {
		return driver.Errorf(op, class, "%w; the settings of TLS are those of the Sentinels too: ca in the URL (Config.TLS) must hold the roots of all", worst)
	}
	if class == driver.Denied {
		return driver.Errorf(op, class, "%w; its login is sentinel_user and sentinel_password in the URL (Config.SentinelUser, SentinelPassword)", worst)
	}
	return driver.Errorf(op, class, "no Sentinel of %d answers: %w", len(addrs), worst)
}

func isUnknownCommand(err error) bool {
	return goredis.HasErrorPrefix(err, "unknown command") // it cuts ERR off
}

func (b *broker) askSentinel(ctx context.Context, addr string) error {
	o := b.options(2) // after as many failures as there is room for, go-redis would try by itself
	o.Addr, o.Username, o.Password, o.DB = addr, b.cfg.SentinelUser, b.cfg.SentinelPassword, 0
	cl := goredis.NewSentinelClient(o)
	defer func() { _ = cl.Close() }()
	return cl.GetMasterAddrByName(ctx, b.cfg.Sentinel).Err()
}
