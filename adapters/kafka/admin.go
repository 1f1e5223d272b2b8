package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/varal-go/varal/core/driver"
)

// admin is the broker's administration.
type admin struct{ d *kafka }

// topicConfig reads a topic's settings. It needs the right DescribeConfigs.
func (d *kafka) topicConfig(ctx context.Context, topic string) (map[string]string, error) {
	all, err := d.adm.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil, err
	}
	one, err := all.On(topic, nil)
	if err == nil {
		err = one.Err
	}
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(one.Configs))
	for _, c := range one.Configs {
		out[c.Key] = c.MaybeValue()
	}
	return out, nil
}

// begin checks what every call of admin has in common.
func (a *admin) begin(op string, of driver.Resource) error {
	if a.d.isClosed() {
		return driver.Errorf(op, driver.Closed, "%w", errClosed)
	}
	return checkDestination(op, of.Destination)
}

// Stats tells, for a group (of a queue always its own), how far it is behind: Lag and
// Ready are what has been written and not committed, in records, at most. Without a
// group Ready is what the log keeps. The broker knows neither what is in flight nor
// ages.
func (a *admin) Stats(ctx context.Context, of driver.Resource) (driver.Stats, error) {
	op := "stats of " + of.Destination.String()
	if err := a.begin(op, of); err != nil {
		return driver.Stats{}, err
	}
	s, err := a.stats(ctx, of)
	if err != nil {
		return driver.Stats{}, classify(op, a.d.explain(err), driver.Transient)
	}
	return s, nil
}

func (a *admin) stats(ctx context.Context, of driver.Resource) (driver.Stats, error) {
	t, err := a.d.topic(ctx, of.Name)
	if err != nil {
		return driver.Stats{}, err
	}
	low, err := a.d.adm.ListStartOffsets(ctx, of.Name)
	if err != nil {
		return driver.Stats{}, err
	}
	high, err := a.d.adm.ListEndOffsets(ctx, of.Name)
	if err != nil {
		return driver.Stats{}, err
	}
	group := groupOf(of.Destination, of.Group)
	var at kadm.OffsetResponses
	if group != "" {
		if at, err = a.d.adm.FetchOffsets(ctx, group); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return driver.Stats{}, err
		}
	}
	sum := driver.Stats{InFlight: -1, Oldest: -1, Partitions: make(map[string]driver.Stats, len(t.Partitions))}
	for id := range t.Partitions {
		one := behind(of.Name, id, low, high, at)
		sum.Partitions[partitionName(of.Name, id)] = one
		if one.Ready < 0 || sum.Ready < 0 {
			sum.Ready = -1
		} else {
			sum.Ready += one.Ready
		}
	}
	if sum.Lag = sum.Ready; group == "" {
		sum.Lag = -1
		for name, one := range sum.Partitions {
			one.Lag = -1
			sum.Partitions[name] = one
		}
	}
	return sum, nil
}

func behind(topic string, id int32, low, high kadm.ListedOffsets, at kadm.OffsetResponses) driver.Stats {
	s := driver.Stats{Ready: -1, InFlight: -1, Lag: -1, Oldest: -1}
	from, ok1 := low.Lookup(topic, id)
	to, ok2 := high.Lookup(topic, id)
	if !ok1 || !ok2 || from.Err != nil || to.Err != nil {
		return s
	}
	next := from.Offset
	if o, ok := at.Lookup(topic, id); ok {
		if o.Err != nil {
			return s
		}
		next = max(next, o.At) // what was trimmed is not waiting any more
	}
	s.Ready = max(0, to.Offset-next)
	s.Lag = s.Ready
	return s
}

// Seek moves a group that has no members. The state stored with the old position goes.
func (a *admin) Seek(ctx context.Context, of driver.Resource, to driver.Position) error {
	op := "seek " + of.Destination.String()
	if err := a.begin(op, of); err != nil {
		return err
	}
	group := groupOf(of.Destination, of.Group)
	if group == "" {
		return driver.Errorf(op, driver.Unsupported, "Group is not set: only a group has a position")
	}
	if err := checkSubscription(op, driver.Subscription{From: of.Destination, Group: group, Start: to}); err != nil {
		return err
	}
	if err := a.seek(ctx, of.Name, group, to); err != nil {
		return classify(op, a.d.explain(err), driver.Transient)
	}
	return nil
}

func (a *admin) seek(ctx context.Context, topic, group string, to driver.Position) error {
	t, err := a.d.topic(ctx, topic)
	if err != nil {
		return err
	}
	if err := a.idle(ctx, group); err != nil {
		return err
	}
	var ids []int32
	for id := range t.Partitions {
		if only, ok := partitionID(topic, to.Partition); to.Partition == "" || ok && only == id {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return driver.Errorf("seek", driver.NotFound, "topic %s has no partition %q", topic, to.Partition)
	}
	at, err := a.d.resolve(ctx, topic, to, driver.Earliest, ids)
	if err != nil {
		return err
	}
	return a.place(ctx, t, group, at)
}

// idle returns Conflict while group has members.
func (a *admin) idle(ctx context.Context, group string) error {
	all, err := a.d.adm.DescribeGroups(ctx, group)
	if err != nil {
		return err
	}
	g := all[group]
	switch {
	case errors.Is(g.Err, kerr.GroupIDNotFound):
		return nil
	case g.Err != nil:
		return g.Err
	case len(g.Members) > 0 || g.State != "Empty" && g.State != "Dead" && g.State != "":
		return driver.Errorf("seek", driver.Conflict, "group %s has %d members (%s): stop its consumers first", group, len(g.Members), g.State)
	}
	return nil
}

// place commits positions for a group without members.
func (a *admin) place(ctx context.Context, t kadm.TopicDetail, group string, at map[int32]int64) error {
	offsets := make(kadm.Offsets)
	for id, o := range at {
		offsets.Add(kadm.Offset{Topic: t.Topic, TopicID: t.ID, Partition: id, At: o, LeaderEpoch: -1})
	}
	resp, err := a.d.adm.CommitOffsets(ctx, group, offsets)
	if err == nil {
		err = resp.Error()
	}
	if errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.RebalanceInProgress) {
		// A member joined after idle looked.
		return driver.Errorf("seek", driver.Conflict, "group %s has members: stop its consumers first: %w", group, err)
	}
	return err
}

// Inspect compares settings of topic and cluster with what durable, ordered use asks for.
func (a *admin) Inspect(ctx context.Context, need driver.Resource) ([]driver.Finding, error) {
	op := "inspect " + need.Destination.String()
	if err := a.begin(op, need); err != nil {
		return nil, err
	}
	t, err := a.d.topic(ctx, need.Name)
	if err != nil {
		return nil, classify(op, err, driver.Transient)
	}
	in := &inspection{subject: "topic " + need.Name}
	if p, ok := t.Partitions[0]; ok {
		n := len(p.Replicas)
		in.expect(n >= 3, "replication", strconv.Itoa(n), "3 or more", "recreate or reassign the topic with 3 replicas: with fewer, one lost disk may lose confirmed messages")
	}
	if need.Partitions > 0 {
		in.expect(len(t.Partitions) == need.Partitions, "partitions", strconv.Itoa(len(t.Partitions)), strconv.Itoa(need.Partitions), "make configuration and topic agree; adding partitions moves keys")
	}
	conf, err := a.d.topicConfig(ctx, need.Name)
	if err != nil {
		in.found = append(in.found, driver.Finding{Rule: "config", Subject: in.subject, Seen: classOf(err, driver.Transient).String(), Wanted: "readable", Fix: "grant DescribeConfigs on the topic"})
		return in.found, nil
	}
	in.settings(conf, a.d.conf.MaxBytes)
	return in.found, nil
}

type inspection struct {
	subject string
	found   []driver.Finding
}

func (in *inspection) expect(ok bool, rule, seen, wanted, fix string) {
	if !ok {
		in.found = append(in.found, driver.Finding{Rule: rule, Subject: in.subject, Seen: seen, Wanted: wanted, Fix: fix, Inspected: true})
	}
}

// shortRetention is where a backlog of one long weekend would be lost.
const shortRetention = 72 * time.Hour

func (in *inspection) settings(conf map[string]string, maxBytes int) {
	number := func(key string) int64 {
		n, err := strconv.ParseInt(conf[key], 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	isr := number("min.insync.replicas")
	in.expect(isr >= 2, "min-isr", conf["min.insync.replicas"], "2 or more", "set min.insync.replicas=2: with 1 a confirmed message may be on one broker only")
	in.expect(conf["unclean.leader.election.enable"] != "true", "unclean-election", "true", "false", "set unclean.leader.election.enable=false: a stale replica that leads loses confirmed messages")
	ms := number("retention.ms")
	in.expect(ms < 0 || time.Duration(ms)*time.Millisecond >= shortRetention, "retention", conf["retention.ms"]+" ms", fmt.Sprintf("%d ms or more", shortRetention.Milliseconds()), "raise retention.ms above the longest time a group may be down or hold a message in retry")
	in.expect(number("retention.bytes") < 0, "retention-bytes", conf["retention.bytes"], "-1", "set retention.bytes=-1 or make sure a backlog fits: older messages are deleted unread")
	in.expect(conf["cleanup.policy"] == "delete" || conf["cleanup.policy"] == "", "cleanup", conf["cleanup.policy"], "delete", "set cleanup.policy=delete unless only the last message of each key matters")
	most := number("max.message.bytes")
	in.expect(most < 0 || most >= int64(maxBytes), "max-bytes", conf["max.message.bytes"], strconv.Itoa(maxBytes+batchRoom), "raise max.message.bytes or lower max_bytes: larger messages are refused")
}
