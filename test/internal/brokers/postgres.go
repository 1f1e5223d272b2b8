package brokers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const postgresPort = 21432

// postgres is for the outbox and its like. The distribution's own cluster, if there
// is one, is left alone.
type postgres struct{}

func (p postgres) spec() spec {
	return spec{
		name: "postgres", urlVar: "VARAL_POSTGRES_URL", ports: []int{postgresPort},
		// SIGINT is the fast shutdown; SIGTERM waits for every client.
		stop: syscall.SIGINT, stopWait: 30 * time.Second,
		process: p.process, vars: p.vars, running: p.running,
	}
}

// bin is the folder of the programs, "" = not installed. Version 15 is the tried one.
func (postgres) bin() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	slices.Sort(found)
	slices.Reverse(found)
	for _, f := range append([]string{"/usr/lib/postgresql/15/bin/postgres"}, found...) {
		if executable(f) {
			return filepath.Dir(f)
		}
	}
	if f, err := exec.LookPath("postgres"); err == nil {
		return filepath.Dir(f)
	}
	return ""
}

func (p postgres) lacks(context.Context, *site) *LackError {
	if p.bin() == "" {
		return &LackError{"postgres", "there is no postgres in /usr/lib/postgresql or PATH", "apt-get install postgresql-15, or --install"}
	}
	return nil
}

func (postgres) install(ctx context.Context, s *site) error {
	// The package would make a cluster of its own on 5432. Not where it is configured already.
	const noCluster = `test -e /etc/postgresql-common/createcluster.conf || {
	mkdir -p /etc/postgresql-common; echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf; }
`
	return s.apt(ctx, "postgres", noCluster, "postgresql-15")
}

// account is the user that the server runs as: it refuses root.
func (postgres) account() (*credential, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // nil = the caller
	}
	u, err := osuser.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("postgres does not run as root, and needs the user of its package: %w", err)
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	return &credential{uint32(uid), uint32(gid)}, errors.Join(uidErr, gidErr)
}

func (postgres) cluster(s *site) string { return filepath.Join(s.data("postgres"), "data") }

func (p postgres) process(s *site) process { return s.process("postgres", "server", p.cluster(s)) }

func (p postgres) start(ctx context.Context, s *site) error {
	dir, bin := s.data("postgres"), p.bin()
	cred, err := p.account()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if cred != nil {
		if err := os.Chown(dir, int(cred.uid), int(cred.gid)); err != nil {
			return err
		}
	}
	// The marker comes after success, so that a half-made cluster is made anew.
	done := filepath.Join(dir, "initdb.done")
	if _, err := os.Stat(done); err != nil {
		s.say("postgres", "initdb")
		err := errors.Join(os.RemoveAll(p.cluster(s)), s.runAs(ctx, "postgres", dir, cred, bin+"/initdb", "-D", p.cluster(s),
			"-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-instructions"))
		if err == nil {
			err = write(done, "", 0o644)
		}
		if err != nil {
			return err
		}
	}
	// No Unix socket: its path may have 107 bytes only, and nobody asks for it.
	return p.process(s).spawn(cred, []string{"LANG=C.UTF-8", "PATH=" + os.Getenv("PATH"), "HOME=" + dir},
		bin+"/postgres", "-D", p.cluster(s), "-c", "listen_addresses=127.0.0.1", "-c", "port="+strconv.Itoa(s.port(postgresPort)),
		"-c", "unix_socket_directories=", "-c", "wal_level=logical", "-c", "max_connections=200")
}

func (p postgres) probe(ctx context.Context, s *site) error {
	cmd := exec.CommandContext(ctx, p.bin()+"/pg_isready", "-q", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port(postgresPort)),
		"-U", "postgres", "-d", "postgres")
	cmd.Env = []string{"LANG=C.UTF-8"}
	return cmd.Run()
}

// running tells the installed version where the server is ours; a foreign one would
// need a client, which only the patterns bring.
func (p postgres) running(ctx context.Context, s *site, url string) string {
	if url != p.vars(s, false)[0].Value || p.bin() == "" {
		return ""
	}
	out, err := exec.CommandContext(ctx, p.bin()+"/postgres", "--version").Output()
	f := strings.Fields(string(out))
	if err != nil || len(f) < 3 {
		return ""
	}
	return f[2]
}

func (p postgres) vars(s *site, native bool) []Var {
	v := []Var{{"VARAL_POSTGRES_URL", "postgres://postgres@" + s.addr(postgresPort) + "/postgres?sslmode=disable"}}
	if native {
		v = append(v, Var{"VARAL_POSTGRES_PIDFILE", p.process(s).pidFile})
	}
	return v
}
