package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/varal-go/varal/core"
)

// maxBody bounds what is read from stdin where the broker states no limit.
const maxBody = 64 << 20

func (s *session) publish() *cobra.Command {
	var b broker
	var m core.Message
	var headers []string
	var body string
	var partitions int
	var asJSON bool
	c := &cobra.Command{
		Use:   "publish DESTINATION",
		Short: "Publish one message and wait for the broker's confirm",
		Long: "DESTINATION is queue:NAME, topic:NAME or stream:NAME. " + fileNames + " The id is printed once the\n" +
			"broker has confirmed the message. Nothing is published when the exit code is 2.\n\n" + exitCodes,
		Example: "  varal publish --url kafka://localhost:9092 --create queue:tickets --key table-7 --body margherita\n" +
			"  echo marinara | varal publish --url kafka://localhost:9092 --create topic:pizzas --header shift=late --body -",
		Args: oneDestination,
		RunE: func(c *cobra.Command, args []string) error {
			to, err := s.destination(&b, args[0], partitions)
			if err != nil {
				return err
			}
			if !c.Flags().Changed("body") {
				return usage("--body is missing: a text, or - to read it from stdin")
			}
			if m.Headers, err = parseHeaders(headers); err != nil {
				return err
			}
			m.Body = []byte(body)
			return s.runPublish(c.Context(), &b, to, &m, body == "-", asJSON)
		},
	}
	f := c.Flags()
	b.flags(f)
	f.StringVar(&m.Key, "key", "", "ordering key")
	f.StringVar(&m.Type, "type", "", "message type")
	f.StringVar(&body, "body", "", "the body, or - for stdin")
	f.StringArrayVar(&headers, "header", nil, "NAME=VALUE, may be repeated")
	f.DurationVar(&m.Delay, "delay", 0, "not delivered before")
	f.DurationVar(&m.TTL, "ttl", 0, "not delivered later")
	f.IntVar(&m.Priority, "priority", 0, "higher first")
	f.IntVar(&partitions, "partitions", 0, "order per key over so many partitions; 0 = none asked")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func (s *session) runPublish(ctx context.Context, b *broker, to core.Destination, m *core.Message, stdin, asJSON bool) error {
	client, err := s.open(ctx, b)
	if err != nil {
		return err
	}
	return closeClient(client, s.publishOne(ctx, client, b.timeout, to, m, stdin, asJSON))
}

func (s *session) publishOne(ctx context.Context, client *core.Client, timeout time.Duration, to core.Destination, m *core.Message, stdin, asJSON bool) (err error) {
	if stdin {
		if m.Body, err = s.readBody(client.Capabilities(to).MaxBytes); err != nil {
			return err
		}
	}
	m.ID = rand.Text() // core would set one on its own copy, and we print it
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := client.Publish(ctx, to, m); err != nil {
		return err
	}
	s.noteMemory(client)
	if asJSON {
		return s.printJSON(struct {
			ID string `json:"id"`
			To string `json:"to"`
		}{m.ID, to.String()})
	}
	_, err = fmt.Fprintln(s.out, m.ID)
	return err
}

func (s *session) readBody(limit int) ([]byte, error) {
	if limit == 0 {
		limit = maxBody
	}
	body, err := io.ReadAll(io.LimitReader(s.in, int64(limit)+1))
	switch {
	case err != nil:
		return nil, usage("read the body from stdin: %w", err)
	case len(body) > limit:
		return nil, usage("the body on stdin is larger than the %d bytes this destination takes", limit)
	}
	return body, nil
}

func parseHeaders(list []string) (out []core.Header, err error) {
	for _, h := range list {
		k, v, ok := strings.Cut(h, "=")
		if !ok || k == "" {
			return nil, usage("--header wants NAME=VALUE, not %.80q", h)
		}
		out = append(out, core.Header{Key: k, Value: v})
	}
	return out, nil
}

// oneDestination checks the argument of publish and consume.
func oneDestination(c *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return usage("%s needs a destination: queue:NAME, topic:NAME or stream:NAME", c.Name())
	case 1:
		return nil
	}
	return usage("%s takes one destination; there is also %.80q", c.Name(), args[1])
}
