// Package patterns is empty. Nothing is here yet.
package patterns
