package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	_ = os.Unsetenv("VARAL_URL") // the lesson is checked on memory
	_ = os.Unsetenv("VARAL_BROKER")
	goleak.VerifyTestMain(m)
}

func Example() {
	main()
	// Output:
	// ack first: 4 of 5 tickets finished, ticket 2 was started 1 time(s)
	// work first: 5 of 5 tickets finished, ticket 2 was started 2 time(s)
}
