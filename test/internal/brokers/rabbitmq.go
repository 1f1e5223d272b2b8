package brokers

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Ports of RabbitMQ. Not 35672 to 35682: rabbitmqctl itself listens there by default.
const (
	rabbitTLS        = 21671
	rabbitAMQP       = 21672
	rabbitManagement = 21673
	rabbitDist       = 21674
	rabbitStream     = 21675
	rabbitPrometheus = 21676
	rabbitEPMD       = 21677
	rabbitCtlFirst   = 21680
	rabbitCtlLast    = 21689
)

const rabbitBin = "/usr/lib/rabbitmq/bin"

// rabbitmq is the server of the distribution's package, run without its init script.
type rabbitmq struct{}

func (r rabbitmq) spec() spec {
	return spec{
		name: "rabbitmq", urlVar: "VARAL_RABBITMQ_URL",
		ports: []int{rabbitAMQP, rabbitTLS, rabbitManagement, rabbitDist, rabbitStream, rabbitPrometheus},
		stop:  syscall.SIGTERM, stopWait: 30 * time.Second,
		process: r.process, extras: r.extras, vars: r.vars, running: r.running,
	}
}

func (rabbitmq) lacks(context.Context, *site) *LackError {
	if executable(rabbitBin + "/rabbitmq-server") {
		return nil
	}
	return &LackError{"rabbitmq", "there is no " + rabbitBin + "/rabbitmq-server", "apt-get install rabbitmq-server, or --install"}
}

func (rabbitmq) install(ctx context.Context, s *site) error {
	return s.apt(ctx, "rabbitmq", "", "rabbitmq-server")
}

func (r rabbitmq) file(s *site, name string) string { return filepath.Join(s.data("rabbitmq"), name) }

func (r rabbitmq) process(s *site) process {
	return s.process("rabbitmq", "server", r.file(s, "home"))
}

func (rabbitmq) epmd(s *site) process {
	return s.process("rabbitmq", "epmd", "-port "+strconv.Itoa(s.port(rabbitEPMD)))
}

func (r rabbitmq) extras(s *site) []process { return []process{r.epmd(s)} }

func (r rabbitmq) start(ctx context.Context, s *site) error {
	if err := errors.Join(r.configure(s), s.ensureTLS()); err != nil {
		return err
	}
	if err := r.startEPMD(ctx, s); err != nil {
		return err
	}
	// With RUNNING_UNDER_SYSTEMD the start script execs the VM: the pid that was
	// started is the server's, with no shell in between.
	return r.process(s).spawn(nil, append(r.env(s), "RUNNING_UNDER_SYSTEMD=true"), rabbitBin+"/rabbitmq-server")
}

// startEPMD runs the name server as a process of ours. Left to RabbitMQ it would be
// a daemon whose pid nobody has.
func (r rabbitmq) startEPMD(ctx context.Context, s *site) error {
	if r.epmd(s).pid() != 0 && epmdAnswers(s.addr(rabbitEPMD)) {
		return nil
	}
	if err := s.free("rabbitmq", []int{rabbitEPMD}); err != nil {
		return err
	}
	err := r.epmd(s).spawn(nil, r.env(s), "epmd", "-address", "127.0.0.1", "-port", strconv.Itoa(s.port(rabbitEPMD)))
	if err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); !epmdAnswers(s.addr(rabbitEPMD)); {
		if err := r.epmd(s).alive(); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("rabbitmq: epmd does not answer on %s", s.addr(rabbitEPMD))
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// epmdAnswers sends a NAMES request; the answer begins with epmd's own port.
func epmdAnswers(addr string) bool {
	_, port, _ := net.SplitHostPort(addr)
	n, _ := strconv.Atoi(port)
	return talk(addr, []byte{0, 1, 'n'}, []byte{0, 0, byte(n >> 8), byte(n)}) == nil
}

// talk sends a request and compares the beginning of the answer.
func talk(addr string, send, want []byte) error {
	c, err := dial(addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Write(send); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s answered %q, want %q", addr, got, want)
	}
	return nil
}

// env is the whole environment of the server and of each tool, in every case without
// the caller's variables.
func (r rabbitmq) env(s *site) []string {
	dir, port := s.data("rabbitmq"), func(p int) string { return strconv.Itoa(s.port(p)) }
	const loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8",
		"HOME=" + dir + "/home", // where the cookie is looked up
		"RABBITMQ_CONF_ENV_FILE=" + dir + "/env.conf",
		"RABBITMQ_NODENAME=" + r.node(s),
		"RABBITMQ_DIST_PORT=" + port(rabbitDist),
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"ERL_EPMD_PORT=" + port(rabbitEPMD),
		"RABBITMQ_MNESIA_BASE=" + dir + "/mnesia",
		"RABBITMQ_LOG_BASE=" + dir + "/log",
		"RABBITMQ_PID_FILE=" + dir + "/rabbit.pid",
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + dir + "/enabled_plugins",
		"RABBITMQ_CONFIG_FILE=" + dir + "/rabbitmq.conf",
		"RABBITMQ_ADVANCED_CONFIG_FILE=" + dir + "/advanced.config",
		"RABBITMQ_CONFIG_FILES=" + dir + "/conf.d",
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=" + loopback,
		"RABBITMQ_CTL_ERL_ARGS=" + loopback,
		"RABBITMQ_CTL_DIST_PORT_MIN=" + port(rabbitCtlFirst),
		"RABBITMQ_CTL_DIST_PORT_MAX=" + port(rabbitCtlLast),
		"ERL_CRASH_DUMP=" + dir + "/erl_crash.dump",
	}
}

func (rabbitmq) node(*site) string { return "varal@localhost" }

// probe wants all three: the management API alone answers 200 while the AMQP port is
// still closed.
func (rabbitmq) probe(ctx context.Context, s *site) error {
	if err := talk(s.addr(rabbitAMQP), []byte("AMQP\x00\x00\x09\x01"), []byte{1, 0, 0}); err != nil {
		return err
	}
	if _, err := rabbitAPI(ctx, s, "/api/health/checks/virtual-hosts"); err != nil {
		return err
	}
	for _, p := range []int{rabbitStream, rabbitTLS} {
		if !listening(s.addr(p)) {
			return fmt.Errorf("%s is not open yet", s.addr(p))
		}
	}
	return nil
}

func rabbitAPI(ctx context.Context, s *site, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr(rabbitManagement)+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth("guest", "guest")
	resp, err := probeClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	return body, err
}

// running logs in: the server states its version in the first frame.
func (rabbitmq) running(_ context.Context, _ *site, url string) string {
	c, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(3 * time.Second)})
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	version, _ := c.Properties["version"].(string)
	return version
}

func (r rabbitmq) vars(s *site, native bool) []Var {
	v := []Var{
		{"VARAL_RABBITMQ_URL", "amqp://guest:guest@" + s.addr(rabbitAMQP) + "/"},
		{"VARAL_RABBITMQ_MGMT_URL", "http://guest:guest@" + s.addr(rabbitManagement)},
		{"VARAL_RABBITMQ_STREAM_URL", "rabbitmq-stream://guest:guest@" + s.addr(rabbitStream) + "/"},
		{"VARAL_RABBITMQ_CTL", r.file(s, "ctl")},
	}
	if !native {
		return v
	}
	return append(v,
		Var{"VARAL_RABBITMQ_TLS_URL", "amqps://guest:guest@" + s.addr(rabbitTLS) + "/"},
		Var{"VARAL_TLS_DIR", s.tlsDir()},
		Var{"VARAL_RABBITMQ_PIDFILE", r.process(s).pidFile})
}

// configure writes what the server reads. The cookie is written once, never again:
// tools that still hold the old one could not talk to the node.
func (r rabbitmq) configure(s *site) error {
	for _, d := range []string{"home", "mnesia", "log"} {
		if err := os.MkdirAll(r.file(s, d), 0o755); err != nil {
			return err
		}
	}
	err := errors.Join(
		write(r.file(s, "rabbitmq.conf"), r.conf(s), 0o644),
		write(r.file(s, "enabled_plugins"), "[rabbitmq_management,rabbitmq_prometheus,rabbitmq_stream,rabbitmq_consistent_hash_exchange,rabbitmq_auth_mechanism_ssl].\n", 0o644),
		write(r.file(s, "env.conf"), "", 0o644), // so that the one of the package is not read
		write(r.file(s, "ctl"), r.ctl(s), 0o755))
	cookie := r.file(s, "home/.erlang.cookie")
	if _, statErr := os.Stat(cookie); errors.Is(statErr, os.ErrNotExist) {
		err = errors.Join(err, write(cookie, rand.Text(), 0o400))
	}
	return err
}

func (r rabbitmq) conf(s *site) string {
	var b strings.Builder
	for _, kv := range [][2]string{
		{"listeners.tcp.1", s.addr(rabbitAMQP)},
		{"listeners.ssl.1", s.addr(rabbitTLS)},
		{"ssl_options.cacertfile", s.tlsDir() + "/ca.pem"},
		{"ssl_options.certfile", s.tlsDir() + "/server.pem"},
		{"ssl_options.keyfile", s.tlsDir() + "/server.key"},
		// A client certificate is checked where one is shown.
		{"ssl_options.verify", "verify_peer"},
		{"ssl_options.fail_if_no_peer_cert", "false"},
		// EXTERNAL: the login is the certificate's common name; the tests make the user.
		{"auth_mechanisms.1", "PLAIN"},
		{"auth_mechanisms.2", "AMQPLAIN"},
		{"auth_mechanisms.3", "EXTERNAL"},
		{"ssl_cert_login_from", "common_name"},
		{"management.tcp.ip", "127.0.0.1"},
		{"management.tcp.port", strconv.Itoa(s.port(rabbitManagement))},
		{"prometheus.tcp.ip", "127.0.0.1"},
		{"prometheus.tcp.port", strconv.Itoa(s.port(rabbitPrometheus))},
		{"stream.listeners.tcp.1", s.addr(rabbitStream)},
		{"stream.advertised_host", "127.0.0.1"},
		{"stream.advertised_port", strconv.Itoa(s.port(rabbitStream))},
		{"log.console", "false"},
	} {
		fmt.Fprintf(&b, "%s = %s\n", kv[0], kv[1])
	}
	return b.String()
}

// ctl is a wrapper for people and for fault injection. /usr/sbin/rabbitmqctl does not
// do: as root it changes to the user rabbitmq, whose cookie is another.
func (r rabbitmq) ctl(s *site) string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n# rabbitmqctl for this node; `ctl -t rabbitmq-diagnostics …` runs another tool.\n")
	b.WriteString("tool=rabbitmqctl\nif [ \"$1\" = -t ]; then tool=$2; shift 2; fi\nexec env -i")
	for _, kv := range r.env(s) {
		fmt.Fprintf(&b, " \\\n\t'%s'", kv)
	}
	fmt.Fprintf(&b, " \\\n\t%s/\"$tool\" \"$@\"\n", rabbitBin)
	return b.String()
}
