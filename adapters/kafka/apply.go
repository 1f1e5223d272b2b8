package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/varal-go/varal/core/driver"
)

// replicationOption is the one option that is not a topic setting of the broker.
const replicationOption = "replication.factor"

// topicOptions are the topic settings Apply takes in Resource.Options.
var topicOptions = []string{
	"cleanup.policy", "compression.type", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level",
	"delete.retention.ms", "errors.deadletterqueue.group.enable", "file.delete.delay.ms", "flush.messages", "flush.ms",
	"follower.replication.throttled.replicas", "index.interval.bytes", "leader.replication.throttled.replicas",
	"local.retention.bytes", "local.retention.ms", "max.compaction.lag.ms", "max.message.bytes",
	"message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type",
	"min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "preallocate",
	"remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable", replicationOption,
	"retention.bytes", "retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms",
	"unclean.leader.election.enable",
}

// Apply creates, verifies, plans or deletes topics and groups. Options are the
// broker's topic settings and replication.factor. Partitions, replicas and settings
// of a topic that exists are reported where they differ and never changed. A group
// exists when it has a position: creating it commits Resource.Start.
func (a *admin) Apply(ctx context.Context, want []driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	if mode < driver.Create || mode > driver.Delete {
		return nil, driver.Errorf("apply", driver.Permanent, "Mode is not set")
	}
	var out []driver.Change
	for _, r := range want {
		op := "apply " + r.Destination.String()
		if err := a.begin(op, r); err != nil {
			return out, err
		}
		for name := range r.Options {
			if !slices.Contains(topicOptions, name) {
				return out, driver.Errorf(op, driver.Unsupported, "option %q: there is no such topic setting", name)
			}
		}
		changes, err := a.apply(ctx, r, mode)
		out = append(out, changes...)
		if err != nil {
			return out, classify(op, a.d.explain(err), driver.Transient)
		}
	}
	return out, nil
}

func (a *admin) apply(ctx context.Context, r driver.Resource, mode driver.Mode) ([]driver.Change, error) {
	if mode == driver.Delete {
		return a.remove(ctx, r)
	}
	var out []driver.Change
	t, err := a.d.topic(ctx, r.Name)
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		missing := driver.Change{Subject: "topic " + r.Name, Field: "exists", Have: "no", Want: "yes"}
		if mode != driver.Create {
			return append(out, missing), nil
		}
		if missing.Done, err = a.create(ctx, r); err != nil {
			return out, err
		}
		if t, err = a.appears(ctx, r.Name); err != nil {
			return out, err
		}
		if missing.Done {
			out = append(out, missing)
		}
	case err != nil:
		return nil, err
	}
	diff, err := a.compare(ctx, r, t)
	if err != nil {
		return out, err
	}
	out = append(out, diff...)
	group, err := a.applyGroup(ctx, r, t, mode)
	return append(out, group...), err
}

// create makes the topic; false = somebody else was faster.
func (a *admin) create(ctx context.Context, r driver.Resource) (bool, error) {
	replicas := int16(-1)
	if n := a.d.conf.ReplicationFactor; n > 0 {
		replicas = int16(n)
	}
	// The room above MaxBytes is what makes MaxBytes true for a single message.
	settings := map[string]*string{"max.message.bytes": kadm.StringPtr(strconv.Itoa(max(maxMessageBytes, a.d.conf.MaxBytes+batchRoom)))}
	for name, value := range r.Options {
		if name == replicationOption {
			n, err := strconv.ParseInt(value, 10, 16)
			if err != nil || n < 1 {
				return false, driver.Errorf("create", driver.Permanent, "option %s: not a positive number", replicationOption)
			}
			replicas = int16(n)
			continue
		}
		settings[name] = kadm.StringPtr(value)
	}
	resp, err := a.d.adm.CreateTopic(ctx, a.partitions(r), replicas, settings, r.Name)
	if err == nil {
		err = resp.Err
	}
	switch {
	case errors.Is(err, kerr.TopicAlreadyExists):
		return false, nil
	case err != nil && resp.ErrMessage != "":
		return false, fmt.Errorf("%w: %s", err, resp.ErrMessage)
	}
	return err == nil, err
}

func (a *admin) partitions(r driver.Resource) int32 {
	if r.Partitions > 0 {
		return int32(r.Partitions)
	}
	return int32(a.d.conf.Partitions)
}

// appears waits until the topic and all its leaders are known: a broker confirms a
// creation before the others have heard of it.
func (a *admin) appears(ctx context.Context, topic string) (kadm.TopicDetail, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		t, err := a.d.topic(ctx, topic)
		if err == nil && len(t.Partitions) > 0 {
			ready := true
			for _, p := range t.Partitions {
				ready = ready && p.Err == nil && p.Leader >= 0
			}
			if ready {
				return t, nil
			}
		}
		if err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			return t, err
		}
		select {
		case <-ctx.Done():
			return t, ctx.Err()
		case <-tick.C:
		}
	}
}

// compare reports what differs in a topic that exists. Without the right to read
// settings those are left out.
func (a *admin) compare(ctx context.Context, r driver.Resource, t kadm.TopicDetail) ([]driver.Change, error) {
	var out []driver.Change
	differs := func(field, have, want string) {
		if have != want {
			out = append(out, driver.Change{Subject: "topic " + r.Name, Field: field, Have: have, Want: want})
		}
	}
	if r.Partitions > 0 {
		differs("partitions", strconv.Itoa(len(t.Partitions)), strconv.Itoa(r.Partitions))
	}
	if want, ok := r.Options[replicationOption]; ok {
		differs(replicationOption, strconv.Itoa(len(t.Partitions[0].Replicas)), want)
	}
	conf, err := a.d.topicConfig(ctx, r.Name)
	if classOf(err, 0) == driver.Denied {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	for _, name := range topicOptions {
		if want, ok := r.Options[name]; ok && name != replicationOption {
			differs(name, conf[name], want)
		}
	}
	if _, own := r.Options["max.message.bytes"]; !own {
		if n, err := strconv.Atoi(conf["max.message.bytes"]); err == nil && n < a.d.conf.MaxBytes {
			differs("max.message.bytes", conf["max.message.bytes"], strconv.Itoa(a.d.conf.MaxBytes+batchRoom))
		}
	}
	return out, nil
}

// applyGroup gives a group its first position. A queue's group needs one only where
// it shall not start at the beginning.
func (a *admin) applyGroup(ctx context.Context, r driver.Resource, t kadm.TopicDetail, mode driver.Mode) ([]driver.Change, error) {
	group := groupOf(r.Destination, r.Group)
	start := r.Start
	if group == "" || r.Group == "" && (start.Kind == driver.Default || start.Kind == driver.Earliest) {
		return nil, nil
	}
	if start.Kind == driver.Default {
		start.Kind = driver.Earliest
	}
	at, err := a.d.adm.FetchOffsets(ctx, group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, err
	}
	var fresh []int32
	for id := range t.Partitions {
		if o, ok := at.Lookup(r.Name, id); !ok || o.At < 0 {
			fresh = append(fresh, id)
		}
	}
	if len(fresh) == 0 {
		return nil, nil
	}
	change := driver.Change{Subject: "group " + group + " of topic " + r.Name, Field: "exists", Have: "no", Want: "yes"}
	if len(fresh) < len(t.Partitions) {
		change.Field, change.Have, change.Want = "positions", strconv.Itoa(len(t.Partitions)-len(fresh)), strconv.Itoa(len(t.Partitions))
	}
	if mode != driver.Create {
		return []driver.Change{change}, nil
	}
	places, err := a.d.resolve(ctx, r.Name, start, driver.Earliest, fresh)
	if err != nil {
		return nil, err
	}
	err = a.place(ctx, t, group, places)
	if driver.ClassOf(err) == driver.Conflict {
		return nil, nil // it has members, which give it its positions
	}
	change.Done = err == nil
	return []driver.Change{change}, err
}

// remove deletes a group (Group set), or a topic, and with a queue its group.
func (a *admin) remove(ctx context.Context, r driver.Resource) ([]driver.Change, error) {
	var out []driver.Change
	if r.Group == "" {
		gone := driver.Change{Subject: "topic " + r.Name, Field: "exists", Have: "yes", Want: "no"}
		resp, err := a.d.adm.DeleteTopic(ctx, r.Name)
		if err == nil {
			err = resp.Err
		}
		a.d.topics.Delete(r.Name)
		switch {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
		case err != nil:
			return out, err
		default:
			gone.Done = true
			out = append(out, gone)
		}
	}
	group := groupOf(r.Destination, r.Group)
	if group == "" {
		return out, nil
	}
	change, err := a.removeGroup(ctx, r.Name, group)
	if change != nil {
		out = append(out, *change)
	}
	return out, err
}

// removeGroup deletes the positions a group has in topic, and the group when those
// were all it had.
func (a *admin) removeGroup(ctx context.Context, topic, group string) (*driver.Change, error) {
	at, err := a.d.adm.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	elsewhere := false
	for name := range at {
		elsewhere = elsewhere || name != topic
	}
	if elsewhere {
		if len(at[topic]) == 0 {
			return nil, nil
		}
		var set kadm.TopicsSet
		for id := range at[topic] {
			set.Add(topic, id)
		}
		_, err = a.d.adm.DeleteOffsets(ctx, group, set)
	} else {
		_, err = a.d.adm.DeleteGroup(ctx, group)
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	c := &driver.Change{Subject: "group " + group + " of topic " + topic, Field: "exists", Have: "yes", Want: "no", Done: err == nil}
	return c, err
}
