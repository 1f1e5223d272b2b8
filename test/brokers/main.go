// Command brokers runs the real servers that the tests talk to.
//
//	go run ./test/brokers up [kafka rabbitmq …]
//	go run ./test/brokers status --json
//	go run ./test/brokers restart kafka --kill
//	go run ./test/brokers down
//
// `up` prints the variables for the tests on its output, and what it does meanwhile on
// its error output, so that eval "$(go run ./test/brokers up)" sets them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/varal-go/varal/test/internal/brokers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "brokers:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	o := brokers.Options{Progress: os.Stderr}
	root := &cobra.Command{Use: "brokers", Short: "Run the real servers that the tests talk to", SilenceUsage: true, SilenceErrors: true}
	f := root.PersistentFlags()
	f.IntVar(&o.PortBase, "port-base", brokers.PortBase(), "add this to every port; such a set has data of its own")
	f.BoolVar(&o.Install, "install", false, "install what is missing (implied by CI=true)")
	f.BoolVar(&o.Native, "native", false, "do not use a docker engine")
	root.AddCommand(up(&o), down(&o), status(&o), restart(&o), env(&o))
	return root
}

func up(o *brokers.Options) *cobra.Command {
	return &cobra.Command{
		Use: "up [broker…]", Short: "Start the brokers and wait until they serve; none named = all but the sets of Redis servers", ValidArgs: brokers.Known(),
		RunE: func(cmd *cobra.Command, names []string) error {
			reports, err := brokers.Up(cmd.Context(), *o, names...)
			if err != nil {
				return err
			}
			var bad []string
			for _, r := range reports {
				fmt.Fprintln(os.Stderr, r)
				// One that nobody named and that is not installed is told, and no failure.
				if !r.Used() && (len(names) > 0 || r.State != brokers.Missing) {
					bad = append(bad, r.Broker)
				}
			}
			fmt.Print(brokers.Exports(reports))
			if len(bad) > 0 {
				return fmt.Errorf("not up: %s", strings.Join(bad, ", "))
			}
			return nil
		},
	}
}

func down(o *brokers.Options) *cobra.Command {
	return &cobra.Command{
		Use: "down [broker…]", Short: "Stop what `up` started; the data stays", ValidArgs: brokers.Known(),
		RunE: func(cmd *cobra.Command, names []string) error {
			return brokers.Down(cmd.Context(), *o, names...)
		},
	}
}

func status(o *brokers.Options) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status [broker…]", Short: "Say what runs, with its version, pid, data and log", ValidArgs: brokers.Known(),
		RunE: func(cmd *cobra.Command, names []string) error {
			reports, err := brokers.Status(cmd.Context(), *o, names...)
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				return e.Encode(reports)
			}
			for _, r := range reports {
				fmt.Println(r)
				if r.PID != 0 {
					fmt.Printf("  pid %d, data %s, log %s\n", r.PID, r.Data, r.Log)
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "for a program")
	return c
}

func restart(o *brokers.Options) *cobra.Command {
	var kill bool
	c := &cobra.Command{
		Use: "restart broker", Short: "End one broker and start it again on the same data", ValidArgs: brokers.Known(),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, names []string) error {
			r, err := brokers.Restart(cmd.Context(), *o, names[0], kill)
			if err != nil {
				return err
			}
			fmt.Fprintln(os.Stderr, r)
			return nil
		},
	}
	c.Flags().BoolVar(&kill, "kill", false, "with SIGKILL: what a crash leaves behind")
	return c
}

func env(o *brokers.Options) *cobra.Command {
	return &cobra.Command{
		Use: "env", Short: "Print the path of the file with the variables of the running set", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			path, err := brokers.EnvFile(*o)
			if err != nil {
				return err
			}
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("nothing is up yet: there is no %s", path)
			}
			fmt.Println(path)
			return nil
		},
	}
}
