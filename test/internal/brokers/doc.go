// Package brokers runs the real servers that the tests talk to: Kafka, RabbitMQ,
// Redis, PostgreSQL and an SQS/SNS emulator, on loopback and on ports of their own; on
// request a Redis Cluster, and Redis behind a Sentinel.
//
// Where a docker engine answers it runs docker-compose.yml; where none does it runs
// the servers as plain processes of the caller. Both ways end in the same
// environment variables (VARAL_KAFKA_URL and its like).
//
// One set of servers is shared by every checkout of a user: whoever comes second
// finds the servers up and uses them. All changes are made under one file lock.
package brokers
