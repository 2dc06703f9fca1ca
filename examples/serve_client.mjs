// Many small inserts from Node: records over HTTP to `pgspate serve`, over connections that are kept.
//
//     pgspate serve --table account
//     node serve_client.mjs http://127.0.0.1:8480 account 1000 64
//
// Sends 1,000 records, 64 at the same time, and says how many were written.

import { randomUUID } from "node:crypto";

const [base = "http://127.0.0.1:8480", table = "account", count = "1000", callers = "64"] =
  process.argv.slice(2);
const headers = { "content-type": "application/json" };
if (process.env.PGSPATE_TOKEN) headers.authorization = `Bearer ${process.env.PGSPATE_TOKEN}`;

// Sends a record until its outcome is known. With its key, it is written once.
export async function insert(record, key = randomUUID()) {
  for (let attempt = 1; ; attempt++) {
    const answer = await fetch(`${base}/tables/${table}/rows`, {
      method: "POST",
      headers: { ...headers, "idempotency-key": key },
      body: JSON.stringify(record),
    }).catch(() => null);
    if (answer?.status === 201) return answer.arrayBuffer();
    if (answer && ![429, 503, 504].includes(answer.status)) {
      const error = await answer.json();
      throw new Error(`${error.code}: ${error.message}`);
    }
    if (attempt === 10) throw new Error("pgspate serve does not answer");
    await new Promise((resume) => setTimeout(resume, 100 * attempt));
  }
}

// Each caller waits for its answer before it sends the next record.
let next = 0;
async function call() {
  while (next < Number(count)) {
    const id = next++;
    await insert({ id, name: `account ${id}` });
  }
}

const begun = performance.now();
await Promise.all(Array.from({ length: Number(callers) }, call));
const seconds = (performance.now() - begun) / 1000;
console.log(`${count} records in ${seconds.toFixed(1)} s, ${Math.round(count / seconds)}/s`);
