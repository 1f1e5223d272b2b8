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
	// margherita for table-7, attempt 1
	// marinara: the oven is too cold
	// marinara for table-7, attempt 2
	// diavola for table-7, attempt 1
}
