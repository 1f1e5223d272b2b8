// Package mutant holds adapters that are broken on purpose, as wrappers around a good
// driver: what the conformance suite must catch. A case that has caught none of them
// proves nothing.
package mutant
