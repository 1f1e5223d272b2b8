package brokers

import (
	"context"
	_ "embed" // the pinned requirements
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	sqsPort    = 21566
	sqsVersion = "1.5.33"
)

//go:embed ministack.txt
var sqsRequirements string

// sqs is an emulator of SQS and SNS in one process. It keeps its state over a clean
// stop only: a kill loses it.
type sqs struct{}

func (q sqs) spec() spec {
	return spec{
		name: "sqs", urlVar: "VARAL_SQS_URL", version: sqsVersion, ports: []int{sqsPort},
		stop: syscall.SIGTERM, stopWait: 5 * time.Second,
		process: q.process, vars: q.vars, running: q.running,
	}
}

func (sqs) venv(s *site) string { return filepath.Join(s.cache, "ministack-"+sqsVersion) }

func (q sqs) lacks(_ context.Context, s *site) *LackError {
	if _, err := os.Stat(filepath.Join(q.venv(s), "complete")); err == nil {
		return nil
	}
	return &LackError{"sqs", "the emulator (ministack " + sqsVersion + ", a Python package) is not installed", "--install, which needs Python 3.10 with venv"}
}

func (q sqs) install(ctx context.Context, s *site) error {
	python, err := exec.LookPath("python3")
	if err != nil || exec.CommandContext(ctx, python, "-c", "import venv, ensurepip").Run() != nil {
		if err := s.apt(ctx, "sqs", "", "python3", "python3-venv"); err != nil {
			return err
		}
		python = "python3"
	}
	dir := q.venv(s)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	requirements := filepath.Join(dir, "requirements.txt")
	if err := write(requirements, sqsRequirements, 0o644); err != nil {
		return err
	}
	s.say("sqs", "pip install ministack==%s", sqsVersion)
	if err := s.run(ctx, "sqs", dir, python, "-m", "venv", filepath.Join(dir, "v")); err != nil {
		return err
	}
	err = s.run(ctx, "sqs", dir, filepath.Join(dir, "v", "bin", "pip"), "install", "-q", "--disable-pip-version-check", "--no-deps", "-r", requirements)
	if err != nil {
		return err
	}
	return write(filepath.Join(dir, "complete"), "", 0o644)
}

func (q sqs) process(s *site) process {
	return s.process("sqs", "server", filepath.Join(q.venv(s), "v", "bin", "ministack"))
}

func (q sqs) start(_ context.Context, s *site) error {
	dir := s.data("sqs")
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o755); err != nil {
		return err
	}
	return q.process(s).spawn(nil, []string{
		"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8",
		"BIND_HOST=127.0.0.1", // without it every interface is bound
		"GATEWAY_PORT=" + strconv.Itoa(s.port(sqsPort)), "MINISTACK_HOST=127.0.0.1",
		"SERVICES=sqs,sns", "LOG_LEVEL=WARNING",
		"TMPDIR=" + dir, "STATE_DIR=" + filepath.Join(dir, "state"), "PERSIST_STATE=1",
	}, filepath.Join(q.venv(s), "v", "bin", "ministack"))
}

func (sqs) probe(ctx context.Context, s *site) error {
	var a struct{ Status string }
	if err := getJSON(ctx, "http://"+s.addr(sqsPort)+"/_ministack/ready", &a); err != nil {
		return err
	}
	if a.Status != "completed" {
		return fmt.Errorf("it says %q", a.Status)
	}
	return nil
}

func getJSON(ctx context.Context, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := probeClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

func (sqs) running(ctx context.Context, _ *site, url string) string {
	var a struct{ Version string }
	if getJSON(ctx, url+"/_ministack/health", &a) != nil {
		return ""
	}
	return a.Version
}

func (q sqs) vars(s *site, native bool) []Var {
	v := []Var{{"VARAL_SQS_URL", "http://" + s.addr(sqsPort)}}
	if native {
		v = append(v, Var{"VARAL_SQS_PIDFILE", q.process(s).pidFile})
	}
	return v
}
