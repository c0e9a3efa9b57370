import { reasonOf } from "./errors.js";
import { ErrorReason } from "./gen/naradplane/v1/error_pb.js";
import { NodeStatus, type Node } from "./gen/naradplane/v1/types_pb.js";
import type { WatchEvent, WatchOptions } from "./index.js";

const shunForMs = 10_000;

/** Pool orders the controllers' addresses: the leader first when it is known, those that did not answer last. */
export class Pool {
  private first: string | undefined;
  private readonly shunned = new Map<string, number>();

  constructor(private readonly addresses: string[]) {
    // Clients that start together spread over the controllers.
    this.first = addresses[Math.floor(Math.random() * addresses.length)];
  }

  order(): string[] {
    const rank = (a: string) => (this.isShunned(a) ? 2 : a === this.first ? 0 : 1);
    return [...this.addresses].sort((a, b) => rank(a) - rank(b));
  }

  answered(address: string, leader: string | null): void {
    this.shunned.delete(address);
    this.first = leader !== null && this.addresses.includes(leader) && !this.isShunned(leader) ? leader : address;
  }

  silent(address: string): void {
    this.shunned.set(address, Date.now() + shunForMs);
  }

  private isShunned(address: string): boolean {
    return (this.shunned.get(address) ?? 0) > Date.now();
  }
}

type Watch = (o: WatchOptions, failed: (err: unknown) => void) => AsyncIterable<WatchEvent>;

/** Routes knows where the partitions of the topics are that calls were about: one watch for each topic. */
export class Routes {
  private readonly tables = new Map<string, Table>();
  private readonly end = new AbortController();

  constructor(private readonly watch: Watch) {}

  close(): void {
    this.end.abort();
  }

  agents(topic: string, patienceMs: number, signal?: AbortSignal): Promise<string[]> {
    let t = this.tables.get(topic);
    if (t === undefined) {
      t = new Table();
      this.tables.set(topic, t);
      void t.follow(this.watch, topic, this.end.signal);
    }
    return t.agents(patienceMs, signal);
  }
}

/** Table is the routes of one topic. */
class Table {
  private known = false;
  private failed: unknown;
  private nodes = new Map<string, Node>();
  private owners = new Map<number, string>();
  private waiting: (() => void)[] = [];

  async follow(watch: Watch, topic: string, signal: AbortSignal): Promise<void> {
    const fail = (err: unknown) => {
      this.failed = err;
      this.wake();
    };
    try {
      for await (const e of watch({ topics: topic === "" ? [] : [topic], signal }, fail)) {
        this.apply(e);
        this.wake();
      }
    } catch (err) {
      fail(err);
    }
  }

  private wake(): void {
    const list = this.waiting;
    this.waiting = [];
    list.forEach((fn) => fn());
  }

  private apply(e: WatchEvent): void {
    this.known = true;
    if (e.reset) {
      this.nodes.clear();
      this.owners.clear();
    }
    for (const { change } of e.changes) {
      switch (change.case) {
        case "node":
          this.nodes.set(change.value.nodeId, change.value);
          break;
        case "nodeRemoved":
          this.nodes.delete(change.value);
          break;
        case "assignment":
          this.owners.set(change.value.partition?.index ?? 0, change.value.owner);
          break;
        case "topicRemoved":
          this.owners.clear();
      }
    }
  }

  /** agents are the owners of the topic's partitions, then other living nodes, then those that drain. */
  async agents(patienceMs: number, signal?: AbortSignal): Promise<string[]> {
    const start = Date.now();
    for (;;) {
      const list = this.known ? this.ranked() : [];
      if (list.length > 0) {
        return list;
      }
      const err = this.known ? new Error("no node is alive") : this.failed;
      if (err !== undefined && reasonOf(err) !== ErrorReason.NO_LEADER && Date.now() - start >= patienceMs) {
        throw err;
      }
      if (signal?.aborted) {
        throw err ?? signal.reason;
      }
      await new Promise<void>((resolve) => {
        const done = () => {
          signal?.removeEventListener("abort", done);
          resolve();
        };
        this.waiting.push(done);
        signal?.addEventListener("abort", done);
      });
    }
  }

  private ranked(): string[] {
    const owners = new Set(this.owners.values());
    const rank = (n: Node) => (n.draining ? 2 : owners.has(n.nodeId) ? 0 : 1);
    return [...this.nodes.values()]
      .filter((n) => n.status === NodeStatus.ALIVE)
      .map((n) => ({ n, turn: Math.random() }))
      .sort((a, b) => rank(a.n) - rank(b.n) || a.turn - b.turn)
      .map(({ n }) => n.address);
  }
}
