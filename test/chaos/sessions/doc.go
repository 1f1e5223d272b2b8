// Package sessions proves order per key and the commit state where they are hardest to
// keep: a process that is killed with tens of thousands of messages done behind a stuck
// one, a kill at each point between a handler's start and the broker's answer, a storm of
// members that come and go while the broker answers with errors, and a message that kills
// whoever handles it. All of it is in the tests; the checks of test/lab/check judge the
// merged histories.
//
// Members that are killed are processes of their own, on kfake too: it listens on
// loopback. What runs on a real broker wants VARAL_KAFKA_URL, VARAL_RABBITMQ_URL,
// VARAL_REDIS_URL or VARAL_SQS_URL; the shared ones will do, since no test here hurts the broker.
//
// VARAL_SEED repeats the choices of a run; the schedule of the processes is the machine's.
package sessions
