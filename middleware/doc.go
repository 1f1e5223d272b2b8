// Package middleware holds the layers of a subscription. A layer is declared, not
// ordered: it edits the subscription's core.Policy or adds a handler wrapper, and
// core assembles the one safe chain, so listing the layers in another order changes
// nothing. A combination that would lose messages is refused at start with the
// reason.
package middleware
