'use strict';
// Drives an AMQP 0-9-1 broker with the unmodified amqplib and prints one JSON line for each thing it saw (see ../README.md).
const { run } = require('./harness');

const scenarios = ['connection', 'exchange', 'queue', 'publish', 'consume', 'restart'].flatMap((name) => require(`./${name}`));

function matcher(pattern) {
  const source = pattern
    .replace(/[.+^${}()|\\]/g, '\\$&')
    .replace(/\*/g, '.*')
    .replace(/\?/g, '.')
    .replace(/\[!/g, '[^');
  return new RegExp(`^${source}$`);
}

async function main() {
  const [uri, pattern = '*'] = process.argv.slice(2);
  if (!uri) {
    process.stderr.write('usage: node main.js AMQP-URI [CASE-PATTERN]\n');
    process.exit(2);
  }
  const wanted = matcher(pattern);
  const chosen = scenarios.filter(({ name }) => wanted.test(name));
  // Slow cases spend their time waiting for the clock and run beside the others; cases that stop the broker run last, alone.
  const beside = chosen.filter(({ slow }) => slow).map((scenario) => run(uri, scenario));
  for (const scenario of chosen) if (!scenario.slow && !scenario.alone) await run(uri, scenario);
  await Promise.all(beside);
  for (const scenario of chosen) if (scenario.alone) await run(uri, scenario);
  process.stdout.write('', () => process.exit(0));
}

main();
