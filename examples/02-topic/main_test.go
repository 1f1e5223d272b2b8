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
	// Unordered output:
	// billing: margherita
	// billing: marinara
	// screen: margherita
	// screen: marinara
}
