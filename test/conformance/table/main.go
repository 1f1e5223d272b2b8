// Command table prints the score card of the conformance suite as the Markdown table
// of the README:
//
//	go run ./test/conformance/table test/conformance/scorecard.json
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/varal-go/varal/test/conformance"
)

func main() {
	path := "test/conformance/scorecard.json"
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	card, err := conformance.ReadScorecard(path)
	if err == nil {
		err = card.Markdown(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	caught := 0
	for _, m := range card.Mutants {
		if len(m.CaughtBy) > 0 {
			caught++
		}
	}
	fmt.Printf("\n%d of %d adapters that are broken on purpose were caught.", caught, len(card.Mutants))
	if len(card.Unproven) > 0 {
		fmt.Printf(" Cases that caught none of them: %s.", strings.Join(card.Unproven, ", "))
	}
	fmt.Println()
}
