package adapters_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/varal-go/varal/adapters"
)

const withheld = "<text of the client library withheld: it holds part of the password>"

// TestShortSecrets: a password that is one of our own words must not be told by gaps in
// them, so our words are the same whatever the password is.
func TestShortSecrets(t *testing.T) {
	t.Parallel()
	const neutral = "8fQz-77x_Lw0"
	says := func(url, text string) string {
		return open(t, adapters.Config{URL: url, Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, errors.New(text)
		}})
	}
	for _, password := range []string{"p", "kafka", "tcp", "password", "tls", "unencrypted", "connect"} {
		for _, form := range []string{
			"kafka://u:PASSWORD@kafka.example.com:9092",   // refused: PLAIN without TLS
			"amqp://u:PASSWORD@rabbit.example.com:5672/",  // refused: no TLS
			"kafka://u:PASSWORD@localhost:9092?nope=1",    // refused by ParseURL
			"kafkas://u:PASSWORD@localhost:9093?tls_ca=/", // a file that cannot be read
			"kafka://u:PASSWORD@localhost:9092",
			"amqp://u:PASSWORD@localhost:5672/",
			"redis://u:PASSWORD@redis.example.com:6379/", // refused: no TLS
			"redis://:PASSWORD@localhost:6379?nope=1",
			"rediss://:PASSWORD@localhost:6380?ca=/",
			"redis://:PASSWORD@localhost:6379",
			"redis://localhost:26379,localhost:26380?sentinel=mine&sentinel_password=PASSWORD",
			"redis://s1.example.com?sentinel=mine&sentinel_password=PASSWORD",   // refused: no TLS
			"redis://localhost:6379?sentinel_password=PASSWORD",                 // refused: no Sentinel
			"sqs://key:PASSWORD@us-east-1?endpoint=http://emulator.example.com", // refused: no TLS
			"sqs://key:PASSWORD@us-east-1?nope=1",
			"sqs://key:PASSWORD@us-east-1?ca=/",
		} {
			got := says(strings.ReplaceAll(form, "PASSWORD", password), "0: 0 0")
			want := says(strings.ReplaceAll(form, "PASSWORD", neutral), "0: 0 0")
			// "unable to dial: " is the library's: it is withheld where it holds the secret.
			if head, _, cut := strings.Cut(got, withheld); cut && strings.HasPrefix(want, head) {
				continue
			}
			if got != want {
				t.Errorf("password %q, %s:\n got %s\nwant %s", password, form, got, want)
			}
		}
		for _, url := range []string{"kafka://u:" + password + "@localhost:9092", "amqp://u:" + password + "@localhost:5672/", "redis://:" + password + "@localhost:6379", "redis://localhost:26379?sentinel=mine&sentinel_password=" + password} {
			got := says(url, "refused <"+password+"> here")
			if !strings.Contains(got, withheld) || strings.Contains(got, "here") || strings.Contains(got, "***") {
				t.Errorf("%q: the library's text came through: %s", password, got)
			}
		}
	}
	for _, url := range []string{"kafka://u:" + canary + "@localhost:9092", "amqp://u:" + canary + "@localhost:5672/", "redis://:" + canary + "@localhost:6379", "redis://localhost:26379?sentinel=mine&sentinel_password=" + canary} {
		got := says(url, "refused <"+canary+"> here")
		if strings.Contains(got, canary) || !strings.Contains(got, "refused <***> here") {
			t.Errorf("a secret that stands out is cut out: %s", got)
		}
	}
}
