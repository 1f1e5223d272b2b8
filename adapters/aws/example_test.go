package aws_test

import (
	"context"
	"fmt"

	"github.com/varal-go/varal/adapters/aws"
	"github.com/varal-go/varal/core"
)

// An emulator on this machine; on AWS "sqs://eu-central-1" is enough.
func ExampleOpen() {
	config, err := aws.ParseURL("sqs://test:test@us-east-1?endpoint=http://127.0.0.1:4566&lease=60s")
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := aws.Open(context.Background(), config)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := core.NewClient(d, core.Options{})
	fmt.Println(config, client.Capabilities(core.Queue("tickets").Keyed(1)).Order)
	if err := client.Close(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output: aws.Config{Region: "us-east-1", Endpoint: "http://127.0.0.1:4566", RoleARN: "", Prefix: "", Lease: 1m0s} per key
}
