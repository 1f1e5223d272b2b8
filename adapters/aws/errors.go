package aws

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	smithy "github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/varal-go/varal/adapters/internal/sdktext"
	"github.com/varal-go/varal/adapters/internal/tlsconf"
	"github.com/varal-go/varal/core/driver"
)

// dialError marks that a connection could not be opened: nothing was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// loginError marks that there were no credentials to sign a request with: nothing was sent.
type loginError struct{ err error }

func (e *loginError) Error() string { return e.err.Error() }
func (e *loginError) Unwrap() error { return e.err }

const (
	throttleWait = time.Second // what the SDK waits after a throttle, too
	deletedWait  = time.Minute // how long the name of a deleted queue is not free
)

// classify gives err its class. An error that has one keeps it.
func classify(op string, err error) error {
	if err == nil || driver.ClassOf(err) != 0 {
		return err
	}
	class, after := classOf(err)
	if why := stranger(err); why != "" {
		return driver.Errorf(op, class, "%s: %w", why, sdktext.Mark(err))
	}
	return &driver.Error{Op: op, Class: class, After: after, Err: sdktext.Mark(err)}
}

// stranger says what is wrong with an endpoint that is no SQS; "" = it may be one. A server
// that is busy or broken answers 5xx, or not at all: then nobody knows.
func stranger(err error) string {
	code := status(err)
	api, answered := errors.AsType[smithy.APIError](err)
	switch _, noTLS := errors.AsType[tls.RecordHeaderError](err); {
	case noTLS, errors.Is(err, http.ErrSchemeMismatch):
		return "what listens at the endpoint speaks no TLS: write http:// for it, or look for its port with TLS"
	case code == 0 && strings.Contains(err.Error(), "malformed HTTP"): // net/http has no type for it
		return "what listens at the endpoint speaks no HTTP, or TLS: check its port, and https:// where it wants TLS"
	case answered && api.ErrorCode() != "UnknownError", code < 300 || code >= 500:
		return ""
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code == http.StatusForbidden, code == http.StatusUnauthorized:
		return "" // of a proxy, too
	}
	return fmt.Sprintf("what answers at the endpoint (HTTP status %d) is not SQS: check the endpoint of the configuration, or that no proxy answers for it", code)
}

// asked is classify for a request that changes nothing: it may as well be asked again.
func asked(op string, err error) error {
	err = classify(op, err)
	if e, ok := errors.AsType[*driver.Error](err); ok && e.Class == driver.Ambiguous {
		return &driver.Error{Op: e.Op, Class: driver.Transient, After: e.After, Err: e.Err}
	}
	return err
}

// classOf: what a service answered with a 4xx was not carried out; a 5xx, and what
// happened to a connection that was there, leaves it open.
func classOf(err error) (driver.Class, time.Duration) {
	if api, ok := errors.AsType[smithy.APIError](err); ok && stranger(err) == "" {
		return classOfCode(api.ErrorCode(), api.ErrorMessage(), status(err))
	}
	if stranger(err) != "" {
		return driver.Permanent, 0
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return driver.NotFound, 0
	}
	switch {
	case tlsconf.IsCertificateError(err):
		return driver.Denied, 0
	case notSent(err):
		return driver.Transient, 0
	}
	return driver.Ambiguous, 0
}

func notSent(err error) bool {
	if _, ok := errors.AsType[*dialError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*loginError](err); ok {
		return true
	}
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "dial"
}

func status(err error) int {
	if r, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return r.HTTPStatusCode()
	}
	return 0
}

// codes maps the code of an error, with what stands before a # and the prefix of the old
// protocol cut off: AWS itself answers AWS.SimpleQueueService.NonExistentQueue for what
// the SDK's type calls QueueDoesNotExist.
var codes = map[string]driver.Class{
	"QueueDoesNotExist": driver.NotFound, "NonExistentQueue": driver.NotFound, "NotFound": driver.NotFound, "ResourceNotFound": driver.NotFound,
	"RequestThrottled": driver.Transient, "ThrottlingException": driver.Transient, "Throttling": driver.Transient, "Throttled": driver.Transient,
	"ThrottledException": driver.Transient, "KmsThrottled": driver.Transient, "KMSThrottling": driver.Transient, "TooManyRequestsException": driver.Transient,
	"OverLimit": driver.Transient, "PriorRequestNotComplete": driver.Transient,
	"BatchRequestTooLong":    driver.TooLarge,
	"ReceiptHandleIsInvalid": driver.LeaseLost, "MessageNotInflight": driver.LeaseLost,
	"AccessDenied": driver.Denied, "AccessDeniedException": driver.Denied, "InvalidSecurity": driver.Denied, "AuthorizationError": driver.Denied,
	"InvalidClientTokenId": driver.Denied, "UnrecognizedClientException": driver.Denied, "SignatureDoesNotMatch": driver.Denied, "IncompleteSignature": driver.Denied,
	"MissingAuthenticationToken": driver.Denied, "ExpiredToken": driver.Denied, "ExpiredTokenException": driver.Denied, "OptInRequired": driver.Denied,
	"InvalidAddress":  driver.Permanent,
	"KmsAccessDenied": driver.Denied, "KmsDisabled": driver.Denied, "KmsNotFound": driver.Denied, "KmsOptInRequired": driver.Denied, "KmsInvalidState": driver.Denied,
	"QueueNameExists": driver.Conflict, "QueueDeletedRecently": driver.Conflict, "PurgeQueueInProgress": driver.Conflict,
	"InvalidMessageContents": driver.Permanent, "MissingParameter": driver.Permanent, "UnsupportedOperation": driver.Permanent,
}

// waits is the throttle hint that goes with a code. SQS sends its throttles with status
// 403 or 400, so a status says nothing about them.
var waits = map[string]time.Duration{
	"RequestThrottled": throttleWait, "ThrottlingException": throttleWait, "Throttling": throttleWait, "Throttled": throttleWait,
	"ThrottledException": throttleWait, "KmsThrottled": throttleWait, "KMSThrottling": throttleWait, "TooManyRequestsException": throttleWait,
	"OverLimit": throttleWait, "QueueDeletedRecently": deletedWait, "PurgeQueueInProgress": deletedWait,
}

func shortCode(code string) string {
	if _, after, ok := strings.Cut(code, "#"); ok {
		code = after
	}
	return strings.TrimPrefix(code, "AWS.SimpleQueueService.")
}

func classOfCode(code, message string, status int) (driver.Class, time.Duration) {
	code = shortCode(code)
	if class, ok := codes[code]; ok {
		return class, waits[code]
	}
	switch {
	case strings.HasPrefix(code, "InvalidParameter"): // …Value of SQS, without of SNS, …Exception of some emulators
		return classOfParameter(message), 0
	case status == http.StatusTooManyRequests:
		return driver.Transient, throttleWait
	case status == http.StatusForbidden:
		return driver.Denied, 0
	case status >= 400 && status < 500:
		return driver.Permanent, 0
	}
	return driver.Ambiguous, 0
}

// classOfParameter reads why a parameter is invalid: there is one code for everything.
func classOfParameter(message string) driver.Class {
	m := strings.ToLower(message)
	has := func(s string) bool { return strings.Contains(m, s) }
	switch {
	case has("must be shorter than"), has("too long"):
		return driver.TooLarge
	case has("receipthandle"), has("receipt handle"), has("not available for visibility timeout change"), has("has expired"), has("beyond the limit"):
		return driver.LeaseLost
	}
	return driver.Permanent
}

// offline reports whether err is about the connection and not an answer.
func offline(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	_, answer := errors.AsType[smithy.APIError](err)
	return !answer && driver.ClassOf(err) == 0
}

func errClosed(op string) error { return driver.Errorf(op, driver.Closed, "used after Close") }
