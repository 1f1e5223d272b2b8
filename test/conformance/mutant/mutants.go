package mutant

import "github.com/varal-go/varal/core/driver"

// Mutant is one way to break an adapter.
type Mutant struct {
	// ID names it in the score card.
	ID string
	// What it does wrong, in one sentence.
	What string
	// Try lists the cases worth running against it.
	Try []string
	// Wrap breaks a driver. What a mutant counts is its own: call it for each driver.
	Wrap func(driver.Driver) driver.Driver
}

// All returns the mutants: those of settling, of leases, of delivering, of publishing, of
// ownership and of capabilities.
func All() []Mutant {
	var all []Mutant
	for _, part := range [][]Mutant{settling(), leasing(), delivering(), buffering(), publishing(), rewriting(), owning(), closing(), claiming()} {
		all = append(all, part...)
	}
	return all
}
