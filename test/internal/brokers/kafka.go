package brokers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	kafkaVersion    = "4.3.1"
	kafkaMinJava    = 17
	kafkaPlain      = 29092
	kafkaController = 29093
	kafkaSASL       = 29094
	kafkaTLS        = 29095
	kafkaMTLS       = 29096
	kafkaSASLTLS    = 29097
	kafkaExpired    = 29098
)

// The users of the listeners that ask for one. The second has no rights but those that
// everyone has, so that a test can take them away.
const (
	user, password             = "varal", "pizza"
	secondUser, secondPassword = "waiter", "tips"
)

// kafka is one combined broker and controller. Its server is an ordinary set of
// Maven artifacts, so the release archive is not needed.
type kafka struct{}

func (k kafka) spec() spec {
	return spec{
		name: "kafka", urlVar: "VARAL_KAFKA_URL", version: kafkaVersion,
		ports: []int{kafkaPlain, kafkaController, kafkaSASL, kafkaTLS, kafkaMTLS, kafkaSASLTLS, kafkaExpired},
		stop:  syscall.SIGTERM, stopWait: 20 * time.Second,
		process: k.process, vars: k.vars, running: k.running,
	}
}

func (kafka) lib(s *site) string { return filepath.Join(s.cache, "kafka-"+kafkaVersion) }

func (k kafka) lacks(ctx context.Context, s *site) *LackError {
	get := "apt-get install default-jre-headless maven, or --install"
	if v := javaMajor(ctx); v < kafkaMinJava {
		why := "there is no java in PATH or JAVA_HOME"
		if v > 0 {
			why = fmt.Sprintf("java is version %d and Kafka %s needs %d", v, kafkaVersion, kafkaMinJava)
		}
		return &LackError{"kafka", why, get}
	}
	if _, err := os.Stat(filepath.Join(k.lib(s), "complete")); err == nil {
		return nil
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return &LackError{"kafka", "there is no mvn, which fetches the server's jars", get}
	}
	return &LackError{"kafka", "the server's jars have not been fetched (54 MB)", "--install"}
}

func (k kafka) install(ctx context.Context, s *site) error {
	var missing []string
	if javaMajor(ctx) < kafkaMinJava {
		missing = append(missing, "default-jre-headless")
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		missing = append(missing, "maven")
	}
	if len(missing) > 0 {
		if err := s.apt(ctx, "kafka", "", missing...); err != nil {
			return err
		}
	}
	// log4j-slf4j-impl is the binding for slf4j 1.7, which this Kafka uses; the one
	// for slf4j 2 stays silent.
	return s.maven(ctx, "kafka", k.lib(s), "org.apache.kafka:kafka_2.13:"+kafkaVersion,
		"org.apache.kafka:kafka-tools:"+kafkaVersion, "org.apache.logging.log4j:log4j-slf4j-impl:2.25.1")
}

func (k kafka) start(ctx context.Context, s *site) error {
	dir := s.data("kafka")
	if err := errors.Join(os.MkdirAll(dir, 0o755), s.ensureTLS(), k.configure(s)); err != nil {
		return err
	}
	if err := k.format(ctx, s); err != nil {
		return err
	}
	argv := append(k.java(s, "-Xms256m", "-Xmx1g", "-XX:+UseG1GC"), "kafka.Kafka", k.file(s, "server.properties"))
	return k.process(s).spawn(nil, javaEnv(dir), argv...)
}

func (k kafka) process(s *site) process {
	return s.process("kafka", "server", k.file(s, "server.properties"))
}

func (kafka) file(s *site, name string) string { return filepath.Join(s.data("kafka"), name) }

func (k kafka) java(s *site, flags ...string) []string {
	return append(append([]string{javaBin()}, flags...), "-cp", filepath.Join(k.lib(s), "lib", "*"),
		"-Dlog4j2.configurationFile="+k.file(s, "log4j2.properties"))
}

// format makes the data folder, with the SCRAM users in its first snapshot: no other
// moment lets them be there before the first client.
func (k kafka) format(ctx context.Context, s *site) error {
	stamp := k.file(s, "formatted")
	if _, err := os.Stat(stamp); err == nil {
		return nil
	}
	s.say("kafka", "formatting the data folder")
	// Half a format would be taken for a whole one.
	if err := os.RemoveAll(k.file(s, "data")); err != nil {
		return err
	}
	argv := append(k.java(s), "kafka.tools.StorageTool", "format", "--cluster-id", "MkU3OEVBNTcwNTJENDM2Qk",
		"--config", k.file(s, "server.properties"), "--ignore-formatted")
	for _, m := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		argv = append(argv, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", m, user, password),
			"--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", m, secondUser, secondPassword))
	}
	if err := s.run(ctx, "kafka", s.data("kafka"), argv...); err != nil {
		return err
	}
	return write(stamp, "", 0o644)
}

// probe asks for the metadata: an open port is not enough.
func (kafka) probe(ctx context.Context, s *site) error {
	_, err := kafkaBrokers(ctx, s.addr(kafkaPlain))
	return err
}

func kafkaBrokers(ctx context.Context, addr string) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RequestRetries(0))
	if err != nil {
		return "", err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	m, err := adm.BrokerMetadata(ctx)
	if err != nil {
		return "", err
	}
	if len(m.Brokers) == 0 {
		return "", errors.New("no broker in the metadata yet")
	}
	v, err := adm.ApiVersions(ctx)
	if err != nil {
		return "", err
	}
	for _, one := range v {
		version = one.VersionGuess()
	}
	return version, nil
}

func (kafka) running(ctx context.Context, _ *site, url string) string {
	v, err := kafkaBrokers(ctx, strings.TrimPrefix(url, "kafka://"))
	if err != nil {
		return ""
	}
	return v
}

func (k kafka) vars(s *site, native bool) []Var {
	url := func(p int) string { return "kafka://" + s.addr(p) }
	v := []Var{
		{"VARAL_KAFKA_URL", url(kafkaPlain)},
		{"VARAL_KAFKA_SASL_URL", url(kafkaSASL)},
		{"VARAL_KAFKA_USER", user},
		{"VARAL_KAFKA_PASSWORD", password},
	}
	if !native {
		return v
	}
	return append(v,
		Var{"VARAL_KAFKA_USER2", secondUser},
		Var{"VARAL_KAFKA_PASSWORD2", secondPassword},
		Var{"VARAL_KAFKA_TLS_URL", url(kafkaTLS)},
		Var{"VARAL_KAFKA_MTLS_URL", url(kafkaMTLS)},
		Var{"VARAL_KAFKA_SASL_TLS_URL", url(kafkaSASLTLS)},
		Var{"VARAL_KAFKA_EXPIRED_URL", url(kafkaExpired)},
		Var{"VARAL_TLS_DIR", s.tlsDir()},
		Var{"VARAL_KAFKA_PIDFILE", k.process(s).pidFile})
}

func javaBin() string {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if p := filepath.Join(home, "bin", "java"); executable(p) {
			return p
		}
	}
	return "java"
}

func javaEnv(dir string) []string {
	env := []string{"HOME=" + dir, "LANG=C.UTF-8", "PATH=" + os.Getenv("PATH")}
	if home := os.Getenv("JAVA_HOME"); home != "" {
		env = append(env, "JAVA_HOME="+home)
	}
	return env
}

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// javaMajor is 0 where there is no java.
func javaMajor(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, javaBin(), "-version").CombinedOutput()
	if err != nil {
		return 0
	}
	m := javaVersion.FindSubmatch(bytes.TrimSpace(out))
	if m == nil {
		return 0
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}
