package adapters_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters"
	"github.com/varal-go/varal/core"
)

// awsCase is an SQS that cannot be used. Open asks it nothing, so most of them are found by
// the first publish, to the queue "tickets".
type awsCase struct {
	name   string
	config adapters.Config
	class  error
	opens  bool // Open is fine
}

const missingQueue = "400 QueueDoesNotExist The specified queue does not exist."

// badAWS are the answers of a service that says no, in the words of AWS, and servers that
// are no SQS.
func badAWS(t *testing.T) []awsCase {
	t.Helper()
	says := func(action, text string) string { return sqsAt(fakeAWS(t, map[string]string{action: text})) }
	secure := strings.Replace(sqsAt(""), "http:", "https:", 1)
	other, _ := authority(t)
	_, wrongCA := serverCert(t, time.Now().Add(time.Hour), "127.0.0.1")
	expiredCA, expired := serverCert(t, time.Now().Add(-time.Hour), "127.0.0.1")
	nameCA, wrongName := serverCert(t, time.Now().Add(time.Hour), "sqs.example.com")
	return []awsCase{
		{"nobody listens", adapters.Config{URL: sqsAt(closedPort(t))}, core.ErrTransient, true},
		{"nobody answers", adapters.Config{URL: sqsAt(listen(t, nil))}, nil, true},
		{"a web server", adapters.Config{URL: sqsAt(greeter(t, "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope"))}, core.ErrPermanent, true},
		{"a web server that speaks JSON", adapters.Config{URL: sqsAt(greeter(t, "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"))}, core.ErrPermanent, true},
		{"a web server that redirects", adapters.Config{URL: sqsAt(greeter(t, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/login\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))}, core.ErrPermanent, true},
		{"a proxy whose server is down", adapters.Config{URL: sqsAt(greeter(t, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnope"))}, core.ErrTransient, true},
		{"not HTTP", adapters.Config{URL: sqsAt(greeter(t, "-ERR unknown command\r\n"))}, core.ErrPermanent, true},
		{"unknown key", adapters.Config{URL: strings.Replace(sqsAt(fakeAWS(t, nil)), rightKey, "AKIDOTHER", 1)}, core.ErrDenied, true},
		{"wrong secret", adapters.Config{URL: says("GetQueueUrl", "403 SignatureDoesNotMatch The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and signing method.")}, core.ErrDenied, true},
		{"expired token", adapters.Config{URL: says("GetQueueUrl", "403 ExpiredToken The security token included in the request is expired") + "&session_token=" + canary}, core.ErrDenied, true},
		{"no permission", adapters.Config{URL: says("SendMessageBatch", "403 AccessDenied User: arn:aws:iam::123456789012:user/waiter is not authorized to perform: sqs:sendmessage on resource: arn:aws:sqs:us-east-1:123456789012:tickets")}, core.ErrDenied, true},
		{"no such queue", adapters.Config{URL: says("GetQueueUrl", missingQueue)}, core.ErrNotFound, true},
		{"throttled", adapters.Config{URL: says("SendMessageBatch", "403 RequestThrottled Request is throttled.")}, core.ErrTransient, true},
		{"expired certificate", adapters.Config{URL: secure + listen(t, &expired), TLS: &adapters.TLS{CA: expiredCA}}, core.ErrDenied, true},
		{"unknown authority", adapters.Config{URL: secure + listen(t, &wrongCA), TLS: &adapters.TLS{CA: other}}, core.ErrDenied, true},
		{"certificate of another host", adapters.Config{URL: secure + listen(t, &wrongName), TLS: &adapters.TLS{CA: nameCA}}, core.ErrDenied, true},
		{"TLS where none is spoken", adapters.Config{URL: secure + fakeAWS(t, nil)}, core.ErrPermanent, true},
		{"a service that quotes the token", adapters.Config{URL: says("SendMessageBatch", "403 AccessDenied the token $TOKEN may not send") + "&session_token=t0k3n-of-the-waiter"}, core.ErrDenied, true},
		{"a role that may not be assumed", adapters.Config{URL: sqsAt("127.0.0.1:1") + "&role_arn=arn:aws:iam::123456789012:role/cook&session_token=t0k3n%2Bof-the-cook"}, core.ErrDenied, false},
	}
}

// TestBadAWS is not parallel: where the SDK looks for STS is a variable of the environment.
func TestBadAWS(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL_STS", "http://"+fakeAWS(t, map[string]string{"AssumeRole": "403 AccessDenied waiter with $TOKEN may not assume cook"}))
	cases := badAWS(t)
	out := make([]string, len(cases))
	var wg sync.WaitGroup
	for i, c := range cases {
		wg.Go(func() { out[i] = c.name + "\n    " + c.run(t) })
	}
	wg.Wait()
	golden(t, "bad_aws.golden", out)
	// It is no other secret of the case, so that nothing else hides it.
	if role := out[len(out)-1]; !strings.Contains(role, "with *** may") {
		t.Errorf("the token that STS quoted is not hidden: %s", role)
	}
}

// run returns what the case is told, within its deadline.
func (c *awsCase) run(t *testing.T) string {
	t.Helper()
	c.config.Provision = core.ProvisionNone
	if !c.opens {
		return (&badCase{"aws: " + c.name, c.config, c.class}).open(t)
	}
	return published(t, c.name, c.config, c.class)
}
