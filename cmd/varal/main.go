// Command varal shows, publishes and consumes; run "varal help".
package main

import (
	"os"

	"github.com/varal-go/varal/cmd/varal/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
