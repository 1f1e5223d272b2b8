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
	// first reading: opened
	// first reading: oven lit
	// first reading: first guest
	// first reading: closed
	// second reading: opened
	// second reading: oven lit
	// second reading: first guest
	// second reading: closed
	// auditor, morning: opened
	// auditor, morning: oven lit
	// auditor, evening: first guest
	// auditor, evening: closed
}
