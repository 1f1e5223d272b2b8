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
	// table-1 [1 2 3 4 5 6]
	// table-2 [1 2 3 4 5 6]
	// table-3 [1 2 3 4 5 6]
	// table-4 [1 2 3 4 5 6]
	// order held: true, missing: 0
}
