package brokers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// compose is the repository's docker-compose.yml on an engine that answers. A nil
// *compose is no engine, and has nothing.
type compose struct {
	s       *site
	file    string
	running []string
}

// compose is nil where no engine answers, or there is no compose plugin.
func (s *site) compose(ctx context.Context) *compose {
	if s.opts.Native || os.Getenv("VARAL_BROKERS_NATIVE") != "" {
		return nil
	}
	if _, err := exec.LookPath("docker"); err != nil {
		return nil
	}
	file, err := composeFile()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for _, probe := range [][]string{{"version", "--format", "{{.Server.Version}}"}, {"compose", "version"}} {
		if exec.CommandContext(ctx, "docker", probe...).Run() != nil {
			return nil
		}
	}
	c := &compose{s: s, file: file}
	cmd := c.command(ctx, "ps", "--services", "--status", "running")
	if out, err := cmd.Output(); err == nil {
		c.running = strings.Fields(string(out))
	}
	return c
}

// composeFile looks for the file beside the go.mod above the working folder.
func composeFile() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		f := filepath.Join(dir, "docker-compose.yml")
		if _, err := os.Stat(f); err == nil {
			return f, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("docker-compose.yml is not in this folder or above")
		}
	}
}

func (c *compose) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append([]string{"compose", "-f", c.file, "-p", c.project(), "--profile", "all"}, args...)
	cmd := exec.CommandContext(ctx, "docker", all...)
	cmd.Env = os.Environ()
	for _, v := range servers() {
		sp := v.spec()
		cmd.Env = append(cmd.Env, variable(sp.name, "PORT")+"="+strconv.Itoa(c.s.port(sp.ports[0])))
	}
	cmd.Env = append(cmd.Env,
		"VARAL_KAFKA_SASL_PORT="+strconv.Itoa(c.s.port(kafkaSASL)),
		"VARAL_RABBITMQ_MANAGEMENT_PORT="+strconv.Itoa(c.s.port(rabbitManagement)),
		"VARAL_REDIS_CLUSTER_B_PORT="+strconv.Itoa(c.s.port(redisNodes[1])),
		"VARAL_REDIS_CLUSTER_C_PORT="+strconv.Itoa(c.s.port(redisNodes[2])),
		"VARAL_REDIS_SENTINEL_B_PORT="+strconv.Itoa(c.s.port(redisPair[1])),
		"VARAL_REDIS_SENTINEL_WATCH_PORT="+strconv.Itoa(c.s.port(redisSentinel)),
		"VARAL_RABBITMQ_STREAM_PORT="+strconv.Itoa(c.s.port(rabbitStream)))
	return cmd
}

func (c *compose) project() string {
	if c.s.opts.PortBase == 0 {
		return "varal-brokers"
	}
	return "varal-brokers-" + strconv.Itoa(c.s.opts.PortBase)
}

func (c *compose) has(name string) bool { return c != nil && slices.Contains(c.running, name) }

func (c *compose) do(ctx context.Context, name string, args ...string) error {
	c.s.say(name, "docker compose %s", strings.Join(args, " "))
	out, err := c.command(ctx, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("docker compose %s: %w\n%s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// up waits for the health check of the file, which asks what the native probe asks.
func (c *compose) up(ctx context.Context, name string) error {
	if err := c.do(ctx, name, "up", "--detach", "--wait", "--wait-timeout", "180", name); err != nil {
		return err
	}
	if name != "rabbitmq" {
		return nil
	}
	ctl := fmt.Sprintf("#!/bin/sh\ntool=rabbitmqctl\nif [ \"$1\" = -t ]; then tool=$2; shift 2; fi\nexec docker compose -f '%s' -p %s --profile all exec -T rabbitmq \"$tool\" \"$@\"\n",
		c.file, c.project())
	if err := os.MkdirAll(c.s.data(name), 0o755); err != nil {
		return err
	}
	return write(filepath.Join(c.s.data(name), "ctl"), ctl, 0o755)
}

func (c *compose) down(ctx context.Context, name string) error {
	return c.do(ctx, name, "stop", name)
}

func (c *compose) restart(ctx context.Context, name string, kill bool) error {
	end := []string{"stop", name}
	if kill {
		end = []string{"kill", "--signal", "SIGKILL", name}
	}
	if err := c.do(ctx, name, end...); err != nil {
		return err
	}
	return c.up(ctx, name)
}
