package adapters

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const maxSecretFile = 64 << 10

// references resolves ${env:NAME} and ${file:/path} and collects what it found.
type references struct {
	secrets  []string // what came from outside the file
	warnings []string
}

// resolve replaces every reference of s by what it names, passed through escape (nil =
// as it is). Text outside of references stays; what a reference brought in is not
// looked at again.
func (r *references) resolve(s string, escape func(string) string) (string, error) {
	if !strings.Contains(s, "${") {
		return s, nil
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", errors.New("a reference ${… is not closed with }")
		}
		value, err := r.look(name)
		if err != nil {
			return "", err
		}
		r.secrets = append(r.secrets, value)
		if escape != nil {
			value = escape(value)
			r.secrets = append(r.secrets, value)
		}
		out.WriteString(value)
		s = after
	}
}

func (r *references) look(ref string) (string, error) {
	kind, name, _ := strings.Cut(ref, ":")
	switch {
	case kind == "env" && name != "":
		v, ok := os.LookupEnv(name)
		switch {
		case !ok:
			return "", fmt.Errorf("the environment variable %s is not set", short(name))
		case v == "":
			return "", fmt.Errorf("the environment variable %s is empty", short(name))
		}
		return v, nil
	case kind == "file" && name != "":
		return r.readFile(name)
	}
	return "", errors.New("a reference is ${env:NAME} or ${file:/path}")
}

// readFile reads a small file that holds one value.
func (r *references) readFile(path string) (string, error) {
	info, err := os.Stat(path) // before opening: a pipe would block
	if err != nil {
		return "", fmt.Errorf("the file cannot be read: %w", err)
	}
	switch {
	case info.IsDir():
		return "", fmt.Errorf("%s is a directory", short(path))
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", short(path))
	case info.Size() > maxSecretFile:
		return "", fmt.Errorf("%s is larger than %d KiB", short(path), maxSecretFile>>10)
	case info.Mode().Perm()&0o004 != 0:
		r.warnings = append(r.warnings, fmt.Sprintf("%s can be read by everyone on this machine: chmod o-r", short(path)))
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("the file cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }() // read only
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFile+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("the file cannot be read: %w", err)
	case len(b) > maxSecretFile: // it grew since Stat
		return "", fmt.Errorf("%s is larger than %d KiB", short(path), maxSecretFile>>10)
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if s == "" {
		return "", fmt.Errorf("%s is empty", short(path))
	}
	return s, nil
}
