package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core/driver"
)

// classify gives err its class; an error that is none of the known ones gets
// unknown, which differs by what was tried (a publish may have happened).
func classify(op string, err error, unknown driver.Class) *driver.Error {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		return e
	}
	return &driver.Error{Op: op, Class: classOf(err, unknown), Err: err}
}

func classOf(err error, unknown driver.Class) driver.Class {
	if ke, ok := errors.AsType[*kerr.Error](err); ok {
		return classOfCode(ke, unknown)
	}
	if a, ok := errors.AsType[*kadm.AuthError](err); ok {
		return classOf(a.Err, driver.Denied)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return driver.NotFound
	}
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case tlsconf.IsCertificateError(err), errors.Is(err, errInsecure), plain, isFirstReadEOF(err):
		return driver.Denied
	case errors.Is(err, kgo.ErrClientClosed):
		return driver.Closed
	}
	return unknown
}

// isFirstReadEOF: the broker hung up on the first request, which is how a listener
// that wants TLS or SASL answers a client that has none.
func isFirstReadEOF(err error) bool {
	_, ok := errors.AsType[*kgo.ErrFirstReadEOF](err)
	return ok
}

func classOfCode(err *kerr.Error, unknown driver.Class) driver.Class {
	switch err {
	case kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.GroupIDNotFound, kerr.InvalidTopicException:
		return driver.NotFound
	case kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism,
		kerr.IllegalSaslState:
		return driver.Denied
	case kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.OffsetMetadataTooLarge:
		return driver.TooLarge
	case kerr.IllegalGeneration, kerr.UnknownMemberID, kerr.FencedInstanceID, kerr.FencedMemberEpoch, kerr.StaleMemberEpoch:
		return driver.LeaseLost
	case kerr.NonEmptyGroup, kerr.TopicAlreadyExists, kerr.GroupSubscribedToTopic:
		return driver.Conflict
	case kerr.InvalidConfig, kerr.UnsupportedVersion, kerr.UnsupportedForMessageFormat:
		return driver.Unsupported
	case kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.PolicyViolation, kerr.InvalidPartitions,
		kerr.InvalidReplicationFactor, kerr.InvalidRequest, kerr.InvalidGroupID, kerr.InvalidCommitOffsetSize,
		kerr.InvalidSessionTimeout, kerr.InvalidReplicaAssignment:
		return driver.Permanent
	}
	return unknown
}

// publishClass is the class of a record that the client gave up.
func publishClass(err error) driver.Class {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, kgo.ErrMaxBuffered):
		// The client ends a record by its context only while no request that holds
		// it is or may have been on its way: it was provably not stored.
		return driver.Transient
	case errors.Is(err, kgo.ErrClientClosed):
		return driver.Ambiguous // the request may have left before the client closed
	}
	return classOf(err, driver.Ambiguous)
}

// explain gives a call that ended by its own deadline the last trouble with a
// connection as its reason: "deadline exceeded" alone tells nobody what to repair.
func (d *kafka) explain(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	if last := d.link.last(); last != nil {
		return errors.Join(err, last)
	}
	return err
}
