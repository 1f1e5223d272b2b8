//go:build unix

package sessions

import (
	"flag"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/goleak"

	"github.com/varal-go/varal/test/chaos"
	"github.com/varal-go/varal/test/chaos/fakekafka"
)

func TestMain(m *testing.M) {
	chaos.WorkerMain()
	flag.Parse()
	// Members spend most of a scene waiting for a session to run out, so more of them than
	// there are cores go side by side. turns is the bound.
	_ = flag.Set("test.parallel", strconv.Itoa(2*cap(turns)))
	goleak.VerifyTestMain(m)
}

// ground is the broker a scene plays on.
type ground struct {
	name string // kafka, rabbitmq, stream (of RabbitMQ), redis, sqs, kfake or memory
	url  string
	fake *kfake.Cluster // of kfake
}

// commits tells whether the broker takes positions, and so a commit state.
func (g ground) commits() bool { return g.name != "rabbitmq" && g.name != "redis" && g.name != "sqs" }

// shares tells whether members divide partitions among them. Those of a FIFO queue do not:
// each is handed messages of any key of which nothing is out.
func (g ground) shares() bool { return g.name != "sqs" }

// slow is an emulator that does some hundred messages a second.
func (g ground) slow() bool { return g.name == "sqs" }

// live is the broker of an environment variable, or the test ends as the house rules say.
func live(t *testing.T, name string) ground {
	t.Helper()
	broker := name
	if name == "stream" {
		broker = "rabbitmq"
	}
	variable := "VARAL_" + strings.ToUpper(broker) + "_URL"
	url := os.Getenv(variable)
	required := slices.Contains(strings.FieldsFunc(os.Getenv("VARAL_REQUIRE"), func(r rune) bool { return r == ',' || r == ' ' }), broker)
	switch {
	case url == "" && required:
		t.Fatalf("%s is not set and VARAL_REQUIRE names %s", variable, broker)
	case url == "":
		t.Skipf("%s is not set: no real %s to test on", variable, broker)
	}
	switch name {
	case "redis":
		url += "?lease=" + redisLease.String()
	case "sqs":
		url = "sqs://test:test@us-east-1?wait=1s&lease=" + sqsLease.String() + "&endpoint=" + url
	}
	return ground{name: name, url: url}
}

// redisLease is how long the shards of a member that is killed wait for the next one: not
// longer than has to be, and longer than a loaded machine keeps a process from renewing.
const redisLease = 3 * time.Second

// sqsLease is the same for the messages that it holds.
const sqsLease = 3 * time.Second

// fakeSession is longer than a loaded machine keeps a process from its heartbeats.
const fakeSession = 3 * time.Second

// faked starts a kfake for this test. Workers reach it as any broker, over loopback. session
// is how long it waits for a silent member.
func faked(t *testing.T, brokers int, session time.Duration) ground {
	t.Helper()
	cl, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.GroupMinSessionTimeout(100*time.Millisecond), kfake.BrokerConfigs(map[string]string{
		"group.consumer.session.timeout.ms":    strconv.FormatInt(session.Milliseconds(), 10),
		"group.consumer.heartbeat.interval.ms": strconv.FormatInt(session.Milliseconds()/6, 10),
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	keeper, err := fakekafka.NewKeeper(cl, session)
	if err != nil {
		t.Fatal(err)
	}
	keeper.Keep(cl)
	t.Cleanup(keeper.Close)
	return ground{name: "kfake", url: "kafka://" + strings.Join(cl.ListenAddrs(), ",") + "?session_timeout=" + session.String(), fake: cl}
}

// turns bounds how many scenes run at once: two cores carry no more without the machine
// itself being what is tested. For the same reason the kills and the replays, which start
// processes and count messages, run after one another and not beside the storm.
var turns = make(chan struct{}, 3)

func turn(t *testing.T) {
	t.Helper()
	turns <- struct{}{}
	t.Cleanup(func() { <-turns })
}
