// The BullMQ side of the rows redis-bullmq-*: one sample, described by the JSON on
// standard input, in a process of its own. It prints one JSON object.
'use strict';
const { Queue, Worker } = require('bullmq');
const { randomBytes } = require('node:crypto');
const { readFileSync } = require('node:fs');

const job = JSON.parse(readFileSync(0, 'utf8'));
const connection = { ...job.connection, maxRetriesPerRequest: null };
// 75 random bytes are 100 characters: data is JSON, which has no bytes of its own.
const pool = Array.from({ length: 4096 }, () => randomBytes(75).toString('base64'));
let at = 0;
const body = () => pool[at++ % pool.length];
const options = { removeOnComplete: true, removeOnFail: true };

// clock measures from now on what this process does.
function clock() {
  const from = process.hrtime.bigint(), cpu = process.cpuUsage();
  return (messages) => {
    const used = process.cpuUsage(cpu);
    return { messages, elapsed_ns: Number(process.hrtime.bigint() - from), cpu_ns: (used.user + used.system) * 1000 };
  };
}

// publish lets so many callers add one job after the other and wait for each.
async function publish(queue) {
  const add = () => queue.add('pizza', { body: body() }, options);
  // callers runs so many at once, each for as long as more says.
  const callers = (more) => Promise.all(Array.from({ length: job.concurrency }, async () => {
    while (more()) await add();
  }));
  let warm = 0, started = 0;
  await callers(() => warm++ < job.warmup);
  const read = clock(), end = Date.now() + job.ms;
  await callers(() => Date.now() < end && ++started);
  return read(started);
}

// consume works off a queue that was filled before the clock starts.
async function consume(queue) {
  for (let left = job.preload; left > 0; left -= 1000) {
    await queue.addBulk(Array.from({ length: Math.min(left, 1000) }, () => ({ name: 'pizza', data: { body: body() }, opts: options })));
  }
  let seen = 0, read, first = 0, timer;
  return new Promise((resolve, reject) => {
    const finish = () => {
      clearTimeout(timer);
      resolve({ worker, result: read(seen - first) });
    };
    const worker = new Worker(job.queue, async () => {
      seen++;
      if (seen === job.warmup) {
        [read, first, timer] = [clock(), seen, setTimeout(finish, job.ms)];
      } else if (seen === job.preload) {
        finish();
      }
    }, { connection, concurrency: job.concurrency });
    worker.on('error', reject);
  });
}

async function main() {
  const queue = new Queue(job.queue, { connection });
  let worker, result;
  if (job.role === 'publish') {
    result = await publish(queue);
  } else {
    ({ worker, result } = await consume(queue));
  }
  if (worker) await worker.close(true);
  await queue.obliterate({ force: true });
  await queue.close();
  process.stdout.write(JSON.stringify(result) + '\n');
}

main().then(() => process.exit(0), (err) => {
  console.error(err);
  process.exit(1);
});
