// Package conformance is the public suite for authors of an adapter: [Run] checks
// the behaviours C01 to C64 through package core and writes a score card.
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Harness{
//			Name: "mine", Broker: "Mine 1.2", Real: true,
//			Open:        func(t testing.TB) driver.Driver { … },
//			Destination: func(t testing.TB, s driver.Shape, partitions int, groups ...string) driver.Destination { … },
//		})
//	}
//
// A case ends in one of four outcomes. pass: every applicable shape behaved.
// refused: the capability is not declared, and asking for it was refused by name
// before a message moved. not_exercised: a hook of the Harness is missing or the case
// says why it could not look; never a pass. fail: the rule the case states is broken.
//
// How the suite counts: over the raw sequence of deliveries, never over a
// de-duplicated set; loss against the publishes that were confirmed, with failed and
// unknown ones kept apart; after the system has come to rest. Every test has
// destinations of its own and ids that derive from a seed, which a failure prints.
// VARAL_SEED=n repeats a run's choices, VARAL_SCORECARD=file merges the outcome into
// a score card.
//
// The package imports core, core/driver and the standard library only. That the cases
// can fail is shown by package mutant: adapters that are broken on purpose.
package conformance
