package brokers

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// EnvFile is where the variables of the running set are kept, for a shell:
//
//	. "$(go run ./test/brokers env)"
func EnvFile(o Options) (string, error) {
	s, err := newSite(o)
	if err != nil {
		return "", err
	}
	return s.envFile(), nil
}

func (s *site) envFile() string { return filepath.Join(s.dir, "env") }

// writeEnv writes the variables of all that runs, whatever the call was about.
func (s *site) writeEnv(ctx context.Context) error {
	return write(s.envFile(), Exports(s.status(ctx, servers())), 0o644)
}

// variable is VARAL_<BROKER>_<what>.
func variable(name, what string) string {
	return "VARAL_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) + "_" + what
}

// Exports renders the variables as lines for a shell.
func Exports(reports []Report) string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, r := range reports {
		for _, v := range r.vars {
			if !seen[v.Name] && r.Used() {
				seen[v.Name] = true
				fmt.Fprintf(&b, "export %s='%s'\n", v.Name, strings.ReplaceAll(v.Value, "'", `'\''`))
			}
		}
	}
	return b.String()
}
