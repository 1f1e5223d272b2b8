package all_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/varal-go/varal/adapters/kafka"
	"github.com/varal-go/varal/adapters/rabbitmq"
	"github.com/varal-go/varal/core/driver"
	"github.com/varal-go/varal/test/chaos/faultnet"
	"github.com/varal-go/varal/test/conformance"
	"github.com/varal-go/varal/test/internal/brokers"
)

// dialer opens TCP connections in an adapter's Config.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// opener opens an adapter whose connections go through dial; nil = its own.
type opener func(ctx context.Context, dial dialer) (driver.Driver, error)

// children are what a process started by Spawn can open.
var children = map[string]func(ctx context.Context) (driver.Driver, error){
	"kafka":    func(ctx context.Context) (driver.Driver, error) { return openKafka(ctx, nil) },
	"rabbitmq": func(ctx context.Context) (driver.Driver, error) { return openRabbitMQ(ctx, nil) },
}

// overTCP is the part of a harness that brokers behind sockets share: a fault proxy
// under every driver, destinations made by Admin.
func overTCP(t *testing.T, open opener) conformance.Harness {
	plain := mustOpen(t, open, nil)
	return overFaults(t, func(testing.TB) opener { return open }, func(testing.TB) driver.Driver { return plain })
}

// overFaults is overTCP for a broker that may be another one for each case: open opens on
// that of a case, and plain is a driver on it whose connections nobody cuts.
func overFaults(t *testing.T, open func(t testing.TB) opener, plain func(t testing.TB) driver.Driver) conformance.Harness {
	net := faultnet.New()
	t.Cleanup(func() { _ = net.Close() })
	run, n := rand.Uint32(), atomic.Int64{}
	return conformance.Harness{
		Open: func(t testing.TB) driver.Driver { return mustOpen(t, open(t), net.DialContext) },
		Destination: func(t testing.TB, s driver.Shape, partitions int, groups ...string) driver.Destination {
			d := driver.Destination{Shape: s, Name: fmt.Sprintf("conformance-%x-%d", run, n.Add(1)), Partitions: partitions}
			createDestination(t, plain(t), d, groups...)
			return d
		},
		Break: func(testing.TB) func() {
			net.SetMode(faultnet.Refuse)
			net.Cut()
			return net.Heal
		},
		HalfOpen: func(testing.TB) func() {
			net.BlackHole(faultnet.Both, true)
			net.SetMode(faultnet.Silent)
			return net.Heal
		},
	}
}

// mustOpen opens a driver that closes with t.
func mustOpen(t testing.TB, open opener, dial dialer) driver.Driver {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	d, err := open(ctx, dial)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { closeDriver(t, d) })
	return d
}

// respawn runs a job in a process of its own: this test binary again.
func respawn(name string) func(t testing.TB, job conformance.Job) *conformance.Process {
	return func(t testing.TB, job conformance.Job) *conformance.Process {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+name)
		cmd.Stderr = os.Stderr
		return conformance.SpawnCommand(t, cmd, job)
	}
}

// restarter restarts a broker that test/brokers runs. VARAL_RESTART lists those that
// may be: others may be at work on them.
func restarter(name string) func(t testing.TB) {
	if !strings.Contains(os.Getenv("VARAL_RESTART"), name) {
		return nil
	}
	return func(t testing.TB) {
		ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
		defer cancel()
		if _, err := brokers.Restart(ctx, brokers.Options{PortBase: brokers.PortBase()}, name, false); err != nil {
			t.Fatalf("restart %s: %v", name, err)
		}
	}
}

// brokerURL returns the URL of a real broker, or ends the test as the house rules say.
func brokerURL(t *testing.T, variable, name string) string {
	u := os.Getenv(variable)
	if u != "" {
		return u
	}
	if strings.Contains(os.Getenv("VARAL_REQUIRE"), name) {
		t.Fatalf("%s is not set and VARAL_REQUIRE asks for %s", variable, name)
	}
	t.Skipf("%s is not set: no real %s to test on", variable, name)
	return ""
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func openKafka(ctx context.Context, dial dialer) (driver.Driver, error) {
	c, err := kafka.ParseURL(os.Getenv("VARAL_KAFKA_URL"))
	if err != nil {
		return nil, err
	}
	c.Dial = dial
	c.SessionTimeout = kafkaSession
	return kafka.Open(ctx, c)
}

const kafkaSession = 6 * time.Second

func TestKafka(t *testing.T) {
	brokerURL(t, "VARAL_KAFKA_URL", "kafka")
	h := overTCP(t, openKafka)
	h.Name, h.Broker, h.Real = "kafka", "Apache Kafka "+or(os.Getenv("VARAL_KAFKA_VERSION"), "4"), true
	h.Session, h.Tolerance = kafkaSession, 3*time.Second
	h.Spawn, h.Restart = respawn("kafka"), restarter("kafka")
	h.OpenDown = func(ctx context.Context) (driver.Driver, error) {
		return kafka.Open(ctx, kafka.Config{Brokers: []string{"127.0.0.1:1"}})
	}
	if raw := os.Getenv("VARAL_KAFKA_SASL_URL"); raw != "" {
		h.BadCredentials = func(_ testing.TB, password string) error { return wrongKafkaPassword(raw, password) }
	}
	h.AllowNotExercised = map[string]string{} // nothing
	mayRestart(&h)
	h.SecondTry = true
	conformance.Run(t, h)
}

// mayRestart allows the restarts to be not exercised on a broker that is somebody's
// own. In CI, and where the broker is required, there is none such.
func mayRestart(h *conformance.Harness) {
	if h.Restart == nil && os.Getenv("CI") != "true" && !strings.Contains(os.Getenv("VARAL_REQUIRE"), h.Name) {
		h.AllowNotExercised["C54"] = "VARAL_RESTART does not name this broker: others may be at work on it"
	}
}

// use opens nothing but asks a driver once.
func use(d driver.Driver, err error) error {
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = d.Publish(ctx, driver.Destination{Shape: driver.Queue, Name: "conformance-denied"}, []*driver.Message{{ID: "x", Time: time.Now()}})
	return errors.Join(err, d.Close(ctx))
}

func wrongKafkaPassword(raw, password string) error {
	c, err := kafka.ParseURL(strings.Replace(raw, "://", "://nobody:"+password+"@", 1) + "?sasl=PLAIN")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return use(kafka.Open(ctx, c))
}

func openRabbitMQ(ctx context.Context, dial dialer) (driver.Driver, error) {
	c, err := rabbitmq.ParseURL(os.Getenv("VARAL_RABBITMQ_URL"))
	if err != nil {
		return nil, err
	}
	c.Dial, c.Heartbeat, c.MaxBytes = dial, 5*time.Second, 4<<20
	return rabbitmq.Open(ctx, c)
}

func TestRabbitMQ(t *testing.T) {
	raw := brokerURL(t, "VARAL_RABBITMQ_URL", "rabbitmq")
	h := overTCP(t, openRabbitMQ)
	h.Name, h.Broker, h.Real = "rabbitmq", "RabbitMQ "+or(os.Getenv("VARAL_RABBITMQ_VERSION"), "3"), true
	h.Session, h.Tolerance = 12*time.Second, 2*time.Second // two missed heartbeats and the check between
	h.ReturnsCount = true                                  // quorum queues count every requeue
	h.Spawn, h.Restart = respawn("rabbitmq"), restarter("rabbitmq")
	h.OpenDown = func(ctx context.Context) (driver.Driver, error) {
		return rabbitmq.Open(ctx, rabbitmq.Config{URLs: []string{"amqp://guest:guest@127.0.0.1:1/"}})
	}
	h.BadCredentials = func(_ testing.TB, password string) error {
		u, err := url.Parse(raw)
		if err != nil {
			return err
		}
		u.User = url.UserPassword("nobody", password)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return use(rabbitmq.Open(ctx, rabbitmq.Config{URLs: []string{u.String()}}))
	}
	h.AllowNotExercised = map[string]string{}
	for _, shape := range []string{"queue", "topic"} {
		h.AllowNotExercised["C33/"+shape] = "across a restart: the broker has no delay, core holds the message"
	}
	mayRestart(&h)
	h.SecondTry = true
	conformance.Run(t, h)
}
