// Runs against live daemons: CLUSTER_TEST_CONTROLLERS are their addresses, CLUSTER_TEST_CUT is one of them behind a proxy that ends
// each connection again and again, CLUSTER_TEST_LOSSY one whose first answer to CreateTopic is lost.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ErrorReason, Naradplane, reasonOf, UnreachableError } from "../src/index.js";

function addresses(name: string): string[] {
  const v = process.env[name];
  assert.ok(v, `${name} is not set`);
  return v.split(",");
}

const text = (b: Uint8Array) => new TextDecoder().decode(b);

test("unary calls, and refusals with a reason", async () => {
  const np = new Naradplane({ controllers: ["127.0.0.1:1", ...addresses("CLUSTER_TEST_CONTROLLERS")] });
  const { members } = await np.cluster.listMembers({});
  assert.ok(members.length >= 3);
  await assert.rejects(np.topics.describeTopic({ name: "nothing" }), (err) => reasonOf(err) === ErrorReason.NOT_FOUND);
  np.close();
});

test("an address at which nobody answers", async () => {
  const np = new Naradplane({ controllers: ["127.0.0.1:1"] });
  await assert.rejects(np.topics.listTopics({}), UnreachableError);
  await assert.rejects(np.data.produce({ topic: "t" }), UnreachableError);
  np.close();
});

test("a lost answer is asked for again, and applied once", async () => {
  const np = new Naradplane({ controllers: addresses("CLUSTER_TEST_LOSSY"), patienceMs: 20_000 });
  const { topic } = await np.topics.createTopic({ name: "ts-once", partitions: 1 });
  assert.equal(topic?.name, "ts-once");
  await assert.rejects(np.topics.createTopic({ name: "ts-once", partitions: 1 }), (err) => reasonOf(err) === ErrorReason.ALREADY_EXISTS);
  np.close();
});

test("records", async () => {
  const np = new Naradplane({ controllers: addresses("CLUSTER_TEST_CONTROLLERS") });
  await np.topics.createTopic({ name: "ts-records", partitions: 3 });
  const want = new Set(Array.from({ length: 50 }, (_, i) => `record ${i}`));
  for (const value of want) {
    await np.data.produce({ topic: "ts-records", records: [{ value: new TextEncoder().encode(value) }] });
  }
  const seen = new Set<string>();
  while (seen.size < want.size) {
    const { records } = await np.data.consume({ topic: "ts-records", group: "g", wait: { seconds: 5n } }, { timeoutMs: 30_000 });
    records.forEach((r) => seen.add(text(r.value)));
    const { errors } = await np.data.ack({ topic: "ts-records", receipts: records.map((r) => r.receipt) });
    assert.deepEqual(errors, []);
  }
  assert.deepEqual(seen, want);
  np.close();
});

test("a watch over connections that end again and again", async () => {
  const np = new Naradplane({ controllers: addresses("CLUSTER_TEST_CONTROLLERS") });
  const watcher = new Naradplane({ controllers: addresses("CLUSTER_TEST_CUT") });
  const made = (async () => {
    for (let i = 0; i < 10; i++) {
      await np.topics.createTopic({ name: `ts-watch-${i}`, partitions: 1 });
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
  })();
  const seen: string[] = [];
  let last = 0n;
  let resets = 0;
  for await (const e of watcher.watchRoutes({ signal: AbortSignal.timeout(30_000) })) {
    assert.ok(e.revision > last, `revision ${e.revision} came after ${last}`);
    last = e.revision;
    resets += e.reset ? 1 : 0;
    for (const { change } of e.changes) {
      if (change.case === "topic" && change.value.name.startsWith("ts-watch-")) {
        seen.push(change.value.name);
      }
    }
    if (seen.includes("ts-watch-9")) {
      break;
    }
  }
  await made;
  assert.deepEqual(seen, Array.from({ length: 10 }, (_, i) => `ts-watch-${i}`));
  assert.equal(resets, 1);
  np.close();
  watcher.close();
});
