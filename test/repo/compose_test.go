package repo_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/varal-go/varal/test/internal/brokers"
)

type composeFile struct {
	Services map[string]composeService
	Volumes  map[string]any
	Configs  map[string]any
}

type composeService struct {
	Image       string
	Profiles    []string
	Ports       []string
	Volumes     []string
	Healthcheck struct {
		Test    []string
		Retries int
	}
	Configs []struct{ Source, Target string }
}

func readCompose(t *testing.T) (path string, f composeFile) {
	t.Helper()
	path = filepath.Join(root(t), "docker-compose.yml")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	return path, f
}

// A tag that moves would let tomorrow's run test another server than today's.
var pinned = regexp.MustCompile(`^[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?(-[a-z0-9.]+)?$`)

// Every port is on loopback: the servers have no passwords worth the name. A
// variable may shift it, but the default is the recipe's.
var loopback = regexp.MustCompile(`^127\.0\.0\.1:\$\{VARAL_[A-Z_]+PORT:-(\d+)\}:`)

func TestComposeServices(t *testing.T) {
	t.Parallel()
	_, f := readCompose(t)
	for _, name := range brokers.Known() {
		if _, ok := f.Services[name]; !ok {
			t.Errorf("test/brokers runs %s, which has no service", name)
		}
	}
	for name, s := range f.Services {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.check(t, name, f)
		})
	}
}

func (s composeService) check(t *testing.T, name string, f composeFile) {
	if !pinned.MatchString(s.Image) || strings.Contains(s.Image, "latest") {
		t.Errorf("image %q is not pinned to a version", s.Image)
	}
	if len(s.Healthcheck.Test) < 2 || s.Healthcheck.Retries == 0 {
		t.Errorf("no health check with retries: %+v", s.Healthcheck)
	}
	if len(s.Profiles) != 2 || s.Profiles[0] != name || s.Profiles[1] != "all" {
		t.Errorf("profiles %v, want [%s all]", s.Profiles, name)
	}
	if len(s.Ports) == 0 {
		t.Error("no port")
	}
	for _, p := range s.Ports {
		if !loopback.MatchString(p) {
			t.Errorf("port %q is not 127.0.0.1:${VARAL_…PORT:-default}:…", p)
		}
	}
	if len(s.Volumes) == 0 {
		t.Error("no volume: a restart would lose what was confirmed")
	}
	for _, v := range s.Volumes {
		volume, _, _ := strings.Cut(v, ":")
		if _, ok := f.Volumes[volume]; !ok {
			t.Errorf("volume %q is not declared", v)
		}
	}
	for _, c := range s.Configs {
		if _, ok := f.Configs[c.Source]; !ok {
			t.Errorf("config %q is not declared", c.Source)
		}
	}
}

// The URLs must be the same both ways.
func TestComposePortsAreThoseOfTheNativeServers(t *testing.T) {
	t.Parallel()
	_, f := readCompose(t)
	for name, port := range brokers.Ports() {
		m := loopback.FindStringSubmatch(f.Services[name].Ports[0])
		if len(m) != 2 || m[1] != port {
			t.Errorf("%s: first port of docker-compose.yml is %q, of test/brokers %s", name, f.Services[name].Ports[0], net.JoinHostPort("127.0.0.1", port))
		}
	}
}

func TestComposeConfigIsAccepted(t *testing.T) {
	t.Parallel()
	if err := exec.CommandContext(t.Context(), "docker", "compose", "version").Run(); err != nil {
		t.Skip("docker compose is not installed; the file was read as YAML only")
	}
	path, _ := readCompose(t)
	out, err := exec.CommandContext(t.Context(), "docker", "compose", "-f", path, "--profile", "all", "config", "-q").CombinedOutput()
	if err != nil {
		t.Errorf("docker compose config: %v\n%s", err, out)
	}
}
