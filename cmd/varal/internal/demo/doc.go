// Package demo is the pizzeria: a counter that publishes tickets to a queue, three
// cooks who take them in order per table, finished pizzas on a topic that billing
// and the screen each get, and a diary that is replayed at the end. It counts what
// became of every single ticket.
package demo
