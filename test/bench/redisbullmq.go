package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// BullMQ is a Node library: its side of a sample is a process of Node, which measures as
// this one does and prints what it saw.
const (
	bullVersion = "6.7.0"
	bullClient  = "5.11.1" // of ioredis, which it talks through
	bullCallers = 100
	// bullWarmUp is more than the others': V8 compiles while the first thousands go through.
	bullWarmUp = 3000
)

//go:embed bullmq.js
var bullScript []byte

// install says whether a peer that is missing may be installed.
var install bool

// bull is an installed BullMQ.
type bull struct{ node, dir string }

// openBull finds BullMQ in the user's cache, or installs it there. The error is leftOut
// where it is not there and must not be installed.
func openBull(ctx context.Context) (*bull, error) {
	node, err := exec.LookPath("node")
	if err != nil {
		return nil, leftOut("BullMQ is a Node library and there is no node: install Node 20 or later with npm, then run again with -install")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	b := &bull{node: node, dir: filepath.Join(cache, "varal-bench", "bullmq-"+bullVersion)}
	if _, err := os.Stat(filepath.Join(b.dir, "node_modules", "bullmq", "package.json")); err != nil {
		if err := b.install(ctx); err != nil {
			return nil, err
		}
	}
	return b, os.WriteFile(filepath.Join(b.dir, "bullmq.js"), bullScript, 0o600)
}

func (b *bull) install(ctx context.Context) error {
	npm, err := exec.LookPath("npm")
	switch {
	case err != nil:
		return leftOut("BullMQ is not installed and there is no npm to install it with: install npm, then run again with -install")
	case !install:
		return leftOut(fmt.Sprintf("BullMQ is not installed in %s: run again with -install, which gets it from npm", b.dir))
	}
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "install", "--prefix", b.dir, "--no-audit", "--no-fund", "--ignore-scripts", //nolint:gosec // constants
		"bullmq@"+bullVersion, "ioredis@"+bullClient)
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(b.dir) // half of it would pass for all of it
		return fmt.Errorf("npm install bullmq: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// bullMatch is redisMatch for rows that need BullMQ.
func bullMatch(perSecond int, sides func(r *redisSite, src *source, n int, b *bull) (ours, peer sampler)) func(context.Context, time.Duration) (*match, error) {
	return func(ctx context.Context, d time.Duration) (*match, error) {
		b, err := openBull(ctx)
		if err != nil {
			return nil, err
		}
		return redisMatch(perSecond, func(r *redisSite, src *source, n int) (ours, peer sampler) {
			return sides(r, src, n, b)
		})(ctx, d)
	}
}

// bullJob describes a sample to bullmq.js.
type bullJob struct {
	Role        string         `json:"role"`
	Queue       string         `json:"queue"`
	Connection  map[string]any `json:"connection"`
	Concurrency int            `json:"concurrency"`
	Warmup      int            `json:"warmup"`
	Preload     int            `json:"preload"`
	Millis      int64          `json:"ms"`
}

func (b *bull) sample(r *redisSite, role string) sampler {
	return func(ctx context.Context, d time.Duration) (measure, error) {
		job, err := r.bullJob(role, d)
		if err != nil {
			return measure{}, err
		}
		arg, err := json.Marshal(job)
		if err != nil {
			return measure{}, err
		}
		ctx, cancel := context.WithTimeout(ctx, d+2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, b.node, "bullmq.js") //nolint:gosec // our own script
		cmd.Dir = b.dir
		var out, said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(arg), &out, &said // the password is no argument
		if err := cmd.Run(); err != nil {
			return measure{}, fmt.Errorf("bullmq: %w: %s", err, firstLine(said.String()))
		}
		var got struct {
			Messages  int64 `json:"messages"`
			ElapsedNS int64 `json:"elapsed_ns"`
			CPUNS     int64 `json:"cpu_ns"`
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			return measure{}, fmt.Errorf("bullmq: what it printed: %w", err)
		}
		return measure{messages: got.Messages, elapsed: time.Duration(got.ElapsedNS), cpu: time.Duration(got.CPUNS)}, nil
	}
}

func (r *redisSite) bullJob(role string, d time.Duration) (bullJob, error) {
	host, port, err := net.SplitHostPort(r.conf.Addr)
	if err != nil {
		return bullJob{}, err
	}
	if r.conf.TLS != nil {
		return bullJob{}, errors.New("the BullMQ rows take no TLS: give VARAL_REDIS_URL without it")
	}
	c := map[string]any{"host": host, "port": port, "db": r.conf.DB}
	if r.conf.User != "" {
		c["username"] = r.conf.User
	}
	if r.conf.Password != "" {
		c["password"] = r.conf.Password
	}
	return bullJob{
		Role: role, Queue: r.queue, Connection: c, Concurrency: bullCallers,
		Warmup: bullWarmUp, Preload: bullWarmUp + peerPreload(d), Millis: d.Milliseconds(),
	}, nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
