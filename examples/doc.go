// Package examples holds the lessons of varal, one folder each: a main of at most 80
// lines that runs in this process, or on the broker of VARAL_URL.
//
//	go run ./examples/01-queue
//	VARAL_URL=kafka://localhost:9092 go run ./examples/01-queue
package examples
