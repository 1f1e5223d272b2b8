// Package faults holds the fault tests of the whole product: real brokers, workers
// that are processes of their own, and what must still be true after a kill, a freeze,
// a cut network, a broker that restarts or blocks, and a SIGTERM under load. All of it
// is in the tests; the checks of test/lab/check judge the merged histories.
//
// A broker that restarts would break whoever else uses it, so the package runs brokers
// of its own, on ports of its own ([test/internal/brokers], VARAL_FAULTS_PORT_BASE). It
// does so only where the run wants brokers at all: VARAL_KAFKA_URL, VARAL_RABBITMQ_URL,
// VARAL_REDIS_URL or VARAL_SQS_URL is set, or VARAL_REQUIRE names the broker.
//
// VARAL_SEED repeats the choices of a run (victims, moments); the schedule of the
// processes is the machine's.
package faults
