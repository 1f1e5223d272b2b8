// Command varal shows, publishes and consumes; run "varal help".
package main

import (
	"os"

	"github.com/redis/go-redis/v9/logging"

	"github.com/varal-go/varal/cmd/varal/internal/cli"
)

func main() {
	logging.Disable() // go-redis writes to stderr what our own error says a moment later
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
