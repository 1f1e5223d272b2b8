package brokers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// LackError says that a server can't run here because something is not installed.
type LackError struct {
	Broker string
	Why    string // what is missing
	Get    string // how to get it
}

func (e *LackError) Error() string { return e.Why + "; get it by " + e.Get }

// aptScript installs packages without starting anything. Where an init system runs,
// a policy-rc.d keeps the package from starting its service on the standard ports;
// it is removed again, and an existing one is left alone.
const aptScript = `set -e
if [ -d /run/systemd/system ] && [ ! -e /usr/sbin/policy-rc.d ]; then
	trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d
	chmod 755 /usr/sbin/policy-rc.d
fi
apt-get -q -o Acquire::Retries=3 update
DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install -y --no-install-recommends --no-upgrade "$@"
`

// apt installs Debian packages, as root or through a sudo that asks nothing.
func (s *site) apt(ctx context.Context, name, before string, packages ...string) error {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s: this system has no apt-get; install %s with its own package manager", name, strings.Join(packages, " "))
	}
	argv := []string{"sh", "-c", before + aptScript, "sh"}
	if os.Getuid() != 0 {
		if _, err := exec.LookPath("sudo"); err != nil {
			return fmt.Errorf("%s: installing %s needs root", name, strings.Join(packages, " "))
		}
		argv = append([]string{"sudo", "-n"}, argv...)
	}
	s.say(name, "apt-get install %s", strings.Join(packages, " "))
	return s.run(ctx, name, "", append(argv, packages...)...)
}

// maven copies the jars of the artifacts and of all they need into dir/lib. A stamp
// written last tells a whole folder from one that was interrupted.
func (s *site) maven(ctx context.Context, name, dir string, artifacts ...string) error {
	stamp := filepath.Join(dir, "complete")
	if _, err := os.Stat(stamp); err == nil {
		return nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	if err := write(filepath.Join(dir, "pom.xml"), pom(artifacts), 0o644); err != nil {
		return err
	}
	s.say(name, "mvn: fetching %s", strings.Join(artifacts, ", "))
	var err error
	for range 3 { // a download that breaks off is continued, not begun anew
		err = s.run(ctx, name, dir, "mvn", "-q", "-B", "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies",
			"-DoutputDirectory=lib", "-DincludeScope=runtime")
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return err
	}
	return write(stamp, strings.Join(artifacts, "\n")+"\n", 0o644)
}

func pom(artifacts []string) string {
	var b strings.Builder
	b.WriteString(`<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>varal.test</groupId><artifactId>server</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
`)
	for _, a := range artifacts {
		p := strings.Split(a, ":")
		fmt.Fprintf(&b, "<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version></dependency>\n", p[0], p[1], p[2])
	}
	b.WriteString("</dependencies></project>\n")
	return b.String()
}

// run executes a command to its end; the error holds the end of what it printed.
func (s *site) run(ctx context.Context, name, dir string, argv ...string) error {
	return s.runAs(ctx, name, dir, nil, argv...)
}

func (s *site) runAs(ctx context.Context, name, dir string, cred *credential, argv ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	cmd.WaitDelay = 5 * time.Second
	if cred != nil {
		detach(cmd, cred)
	}
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(out.String())
		if n := len(text); n > 3000 {
			text = "…" + text[n-3000:]
		}
		return fmt.Errorf("%s: %s: %w\n%s", name, argv[0], err, text)
	}
	return nil
}

// executable tells whether a file is there to be run.
func executable(path string) bool {
	i, err := os.Stat(path)
	return err == nil && i.Mode().IsRegular() && i.Mode()&0o111 != 0
}
