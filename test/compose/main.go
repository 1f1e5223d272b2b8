// Command compose reads docker-compose.yml with the library that docker compose itself
// uses, every profile on, and fails where that would: go run . ../../docker-compose.yml.
// It is a module of its own, so that the library stays out of the project's go.mod.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: compose FILE, for example: go run . ../../docker-compose.yml")
		os.Exit(2)
	}
	if err := check(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "compose:", err)
		os.Exit(1)
	}
}

// check loads the file with all profiles and prints what it found.
func check(ctx context.Context, path string) error {
	o, err := cli.NewProjectOptions([]string{path}, cli.WithName("varal"), cli.WithProfiles([]string{"*"}))
	if err != nil {
		return err
	}
	p, err := o.LoadProject(ctx)
	if err != nil {
		return err
	}
	for _, name := range p.ServiceNames() {
		s, err := p.GetService(name)
		if err != nil {
			return err
		}
		fmt.Println(name, s.Image)
	}
	return nil
}
