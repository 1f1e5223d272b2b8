package redis

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// cluster returns a client of all nodes. It follows no redirection and tries nothing again
// by itself: go-redis would send a whole pipeline again where the first command of it must
// wait, those that have been carried out too, and a repeated XADD is a second message. See
// follow.
func (b *broker) cluster(conns int) *goredis.ClusterClient {
	o := b.options(conns)
	cl := goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs: b.cfg.addrs(), MaxRedirects: -1, DisableRoutingPolicies: true,
		Username: o.Username, Password: o.Password, Protocol: o.Protocol, ClientName: o.ClientName,
		Dialer: o.Dialer, DialTimeout: o.DialTimeout, DialerRetries: o.DialerRetries, MaxRetries: o.MaxRetries,
		ReadTimeout: o.ReadTimeout, WriteTimeout: o.WriteTimeout, PoolTimeout: o.PoolTimeout,
		ContextTimeoutEnabled: o.ContextTimeoutEnabled, PoolSize: o.PoolSize, DisableIdentity: o.DisableIdentity,
		MaintNotificationsConfig: o.MaintNotificationsConfig,
		NewClient: func(o *goredis.Options) *goredis.Client {
			node := goredis.NewClient(o)
			node.AddHook(answers{})
			return node
		},
	})
	cl.AddHook(answers{})
	cl.AddHook(follow{cl})
	return cl
}

var errNoNodes = errors.New("no node of the Cluster is known")

// follow is a hook that learns from answers where the slots are. What a node has refused
// because it does not serve the slot was not carried out: it is sent once more, after the
// nodes were asked. What is refused again, or is under way between two nodes, is left to
// the caller's next try.
type follow struct{ cl *goredis.ClusterClient }

var _ goredis.Hook = follow{}

// DialHook is not asked: the clients of the nodes dial.
func (follow) DialHook(next goredis.DialHook) goredis.DialHook { return next }

// ProcessHook follows a single command.
func (f follow) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		err := next(ctx, cmd)
		if isMoved(err) {
			reload(ctx, f.cl)
			err = next(ctx, cmd)
		}
		f.learn(ctx, err)
		return underWay(err)
	}
}

// ProcessPipelineHook follows those commands of a pipeline that were refused, and a
// transaction as a whole. The others have their answers.
func (f follow) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		err := next(ctx, cmds)
		if err == nil {
			return nil
		}
		refused := slices.DeleteFunc(slices.Clone(cmds), func(cmd goredis.Cmder) bool { return !isMoved(cmd.Err()) })
		if len(refused) > 0 {
			if len(cmds) > 0 && cmds[0].Name() == "multi" {
				refused = cmds
			}
			reload(ctx, f.cl)
			_ = next(ctx, refused) // the result is in each
		}
		var first error
		for _, cmd := range cmds {
			err := cmd.Err()
			f.learn(ctx, err)
			if moving := underWay(err); moving != nil && moving != err { //nolint:errorlint // the very same
				cmd.SetErr(moving)
			}
			if first == nil {
				first = cmd.Err()
			}
		}
		return first
	}
}

// learn has the nodes asked again, beside, where one is not there: its replica may serve.
func (f follow) learn(ctx context.Context, err error) {
	if err != nil && (offline(err) || goredis.HasErrorPrefix(err, "CLUSTERDOWN")) {
		f.cl.ReloadState(ctx)
	}
}

// reload asks the nodes where the slots are, now.
func reload(ctx context.Context, cl *goredis.ClusterClient) {
	_ = cl.ForEachMaster(ctx, func(context.Context, *goredis.Client) error { return nil })
}

func isMoved(err error) bool { return err != nil && goredis.HasErrorPrefix(err, "MOVED ") }

// underWay makes the refusal of a node one that passes. Outside a Cluster it does not, so
// its class is another (see replies).
func underWay(err error) error {
	if isMoved(err) || err != nil && goredis.HasErrorPrefix(err, "ASK ") {
		return replyError("TRYAGAIN the slot is on its way to another node: " + err.Error())
	}
	return err
}

func isNoCluster(err error) bool {
	return err != nil && strings.Contains(err.Error(), "cluster support disabled")
}

// spread sends items to the nodes that have their slots. Tied ones are one transaction for
// each stream: a key is in one stream, so its order holds.
func (b *broker) spread(ctx context.Context, cl *goredis.ClusterClient, items []*item, tied bool) ([]confirmation, error) {
	out := make([]confirmation, len(items))
	all := make([]int, len(items))
	for i := range all {
		all[i] = i
	}
	err := b.spreadSome(ctx, cl, items, all, tied, out)
	var refused []int
	for i := range out {
		// A transaction that was refused tells why of one command only.
		if e := out[i].cmd.Err(); isMoved(e) || tied && goredis.HasErrorPrefix(e, "EXECABORT") {
			refused = append(refused, i)
		}
	}
	if len(refused) > 0 {
		reload(ctx, cl)
		err = b.spreadSome(ctx, cl, items, refused, tied, out)
	}
	for i := range out {
		if e := out[i].cmd.Err(); e != nil {
			(follow{cl}).learn(ctx, e)
			out[i].cmd.SetErr(underWay(e))
		}
	}
	return out, err
}

// spreadSome sends those items whose indices are in which, each node's beside the others'.
func (b *broker) spreadSome(ctx context.Context, cl *goredis.ClusterClient, items []*item, which []int, tied bool, out []confirmation) error {
	type part struct {
		cl *goredis.Client
		at []int
	}
	parts := map[string]*part{}
	for _, i := range which {
		node, err := cl.MasterForKey(ctx, items[i].log)
		if err != nil {
			return failAll(items, out, &dialError{err})
		}
		name := node.Options().Addr
		if tied {
			name = items[i].log
		}
		if parts[name] == nil {
			parts[name] = &part{cl: node}
		}
		parts[name].at = append(parts[name].at, i)
	}
	errs := make([]error, 0, len(parts))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for p := range maps.Values(parts) {
		wg.Go(func() {
			some := make([]*item, len(p.at))
			for n, i := range p.at {
				some[n] = items[i]
			}
			confirmed, err := b.sendTo(ctx, p.cl, some, tied)
			for n, i := range p.at {
				out[i] = confirmed[n]
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// failAll notes that nothing was sent of what has no answer yet.
func failAll(items []*item, out []confirmation, err error) error {
	for i := range items {
		if out[i].cmd == nil {
			out[i].cmd = goredis.NewCmd(context.Background())
			out[i].cmd.SetErr(err)
		}
	}
	return err
}

// dialNode connects a reader to the node of its key.
func (r *reader) dialNode(ctx context.Context, network, _ string) (net.Conn, error) {
	cl, ok := r.b.ctl.(*goredis.ClusterClient)
	if !ok {
		return nil, &dialError{errNoNodes}
	}
	node, err := cl.MasterForKey(ctx, r.key)
	if err != nil {
		return nil, &dialError{err}
	}
	addr := node.Options().Addr
	r.at.Store(&addr)
	return r.b.dialTCP(ctx, network, addr)
}

// astray looks at why a read in a Cluster has failed. Where the slot has gone to another
// node the connection leads to the wrong one, and is given up.
func (r *reader) astray(ctx context.Context, cl *goredis.Client, err error) error {
	cluster, ok := r.b.ctl.(*goredis.ClusterClient)
	if !ok {
		return err
	}
	(follow{cluster}).learn(ctx, err)
	moving := underWay(err)
	if moving == err { //nolint:errorlint // the very same
		return err
	}
	reload(ctx, cluster)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == cl && !r.closed {
		_ = cl.Close()
		r.client = r.connect()
	}
	return moving
}

// beside is a client of the server that the blocked read is at: a number of a connection
// means another one elsewhere. nil = we do not know one.
func (r *reader) beside(ctx context.Context) goredis.UniversalClient {
	cl, ok := r.b.ctl.(*goredis.ClusterClient)
	if !ok {
		return r.b.ctl
	}
	node, err := cl.MasterForKey(ctx, r.key)
	if at := r.at.Load(); err != nil || at == nil || node.Options().Addr != *at {
		return nil
	}
	return node
}
