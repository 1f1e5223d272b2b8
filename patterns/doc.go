// Package patterns is the home of what services build on a broker: outbox, inbox,
// saga, request and reply, schedules. Each is a package of its own below this one and
// begins by stating what it guarantees, and what it does not.
package patterns
