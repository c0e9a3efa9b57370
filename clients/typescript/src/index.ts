/**
 * A client of a naradctl-plane cluster: the services of the contract over several addresses, and a watch that does not end.
 *
 * Each call tries the addresses in turn until one answers. A mutation gets a request id; after an unknown outcome it is repeated
 * under the same id, and the cluster applies it once. `data` goes to the agents that own the topic's partitions, by the routes
 * that the controllers stream. `watchRoutes` resumes by revision.
 */
import { setTimeout as wait } from "node:timers/promises";
import { createClient, type Client, type Transport } from "@connectrpc/connect";
import { createConnectTransport, type ConnectTransportOptions } from "@connectrpc/connect-node";
import { Failover, type Party } from "./call.js";
import { reasonOf, UnreachableError } from "./errors.js";
import { DataService } from "./gen/naradnode/v1/data_service_pb.js";
import { ClusterService } from "./gen/naradplane/v1/cluster_service_pb.js";
import { ErrorReason } from "./gen/naradplane/v1/error_pb.js";
import { NodeService } from "./gen/naradplane/v1/node_service_pb.js";
import { TopicService } from "./gen/naradplane/v1/topic_service_pb.js";
import type { Change } from "./gen/naradplane/v1/types_pb.js";
import { Pool, Routes } from "./routes.js";

export * from "./errors.js";
export * from "./gen/naradplane/v1/cluster_service_pb.js";
export * from "./gen/naradplane/v1/topic_service_pb.js";
export * from "./gen/naradplane/v1/types_pb.js";
export * from "./gen/naradplane/v1/error_pb.js";
export * from "./gen/naradnode/v1/data_service_pb.js";

export interface Options {
  /** Addresses, host:port, of one or more controllers. */
  controllers: string[];
  /** Whom `data` asks, instead of the agents that the controllers name. */
  agents?: string[];
  /** Options of the connections, such as certificates; with `tls` addresses are dialled by https. */
  tls?: ConnectTransportOptions["nodeOptions"];
  /** Bound of one attempt at one address; 5000 unless it is given. The time for which a consume waits is added. */
  attemptTimeoutMs?: number;
  /** How long a call goes on while no address answers at all; 0 unless it is given. */
  patienceMs?: number;
}

export interface WatchOptions {
  /** Names; none is all topics. */
  topics?: string[];
  /** The revision of the last event that was handled before; 0n begins with a snapshot. */
  after?: bigint;
  /** How long a stream may be silent before another one is opened; 10000 unless it is given. */
  idleMs?: number;
  signal?: AbortSignal;
}

/** One step of a watch. */
export interface WatchEvent {
  /** What the watcher has seen once it has handled the event. */
  revision: bigint;
  /** Whether changes are the whole state at revision: what was folded before is void. */
  reset: boolean;
  /** All that the revision changed; may be empty. */
  changes: Change[];
}

/** Naradplane is a cluster. Close it to end the streams that it holds. */
export class Naradplane {
  /** Members, moves, settings, controllers. */
  readonly cluster: Client<typeof ClusterService>;
  /** Topics. */
  readonly topics: Client<typeof TopicService>;
  /** Records. */
  readonly data: Client<typeof DataService>;

  private readonly pool: Pool;
  private readonly routes: Routes;
  private readonly transports = new Map<string, Transport>();

  constructor(private readonly options: Options) {
    if (options.controllers.length + (options.agents?.length ?? 0) === 0) {
      throw new Error("controllers must name an address of the cluster, such as 127.0.0.1:7400");
    }
    this.pool = new Pool(options.controllers);
    this.routes = new Routes((o, failed) => this.watch(o, failed));
    const common = {
      at: (address: string) => this.at(address),
      attemptTimeoutMs: options.attemptTimeoutMs ?? 5000,
      patienceMs: options.patienceMs ?? 0,
    };
    const plane = new Failover({
      ...common, what: "controller", addresses: async () => this.pool.order(),
      answered: (a, leader) => this.pool.answered(a, leader), silent: (a) => this.pool.silent(a),
    } satisfies Party);
    const agents = new Failover({
      ...common, what: "agent", answered: () => undefined, silent: () => undefined,
      addresses: async (request, signal) => options.agents ??
        this.routes.agents((request as { topic?: string } | undefined)?.topic ?? "", common.patienceMs, signal),
    } satisfies Party);
    this.cluster = createClient(ClusterService, plane);
    this.topics = createClient(TopicService, plane);
    this.data = createClient(DataService, agents);
  }

  /** close ends the streams by which the client follows the routes. */
  close(): void {
    this.routes.close();
  }

  /**
   * watchRoutes follows nodes, topics and assignments: first the whole state, then each revision, whole and in order, over
   * broken connections and controllers that stop. It ends with the signal, by leaving the loop, or with a refusal.
   */
  watchRoutes(options: WatchOptions = {}): AsyncGenerator<WatchEvent, void, undefined> {
    return this.watch(options, () => undefined);
  }

  private async *watch(o: WatchOptions, failed: (err: unknown) => void): AsyncGenerator<WatchEvent, void, undefined> {
    let after = o.after ?? 0n;
    let backoff = 50;
    while (!o.signal?.aborted) {
      const tried: { address: string; error: unknown }[] = [];
      let last: unknown;
      for (const address of this.pool.order()) {
        let progressed = false;
        try {
          for await (const e of this.stream(address, after, o)) {
            progressed = true;
            if (e !== undefined) {
              after = e.revision;
              yield e;
            }
          }
          last = new Error("the controller ended the stream");
        } catch (err) {
          last = err;
        }
        if (o.signal?.aborted) {
          return;
        }
        switch (reasonOf(last)) {
          case ErrorReason.INVALID:
            throw last;
          case ErrorReason.REVISION_COMPACTED:
            after = 0n;
            break;
          case ErrorReason.UNSPECIFIED:
            this.pool.silent(address);
            tried.push({ address, error: last });
        }
        if (progressed) {
          backoff = 50;
          last = undefined;
          break; // begin with the best one again
        }
      }
      if (last !== undefined) {
        failed(tried.length === this.options.controllers.length ? new UnreachableError("controller", tried) : last);
      }
      await wait(backoff, undefined, { signal: o.signal }).catch(() => undefined);
      backoff = Math.min(2 * backoff, 2000);
    }
  }

  /** stream yields the events of one stream; undefined for a message that completes none. */
  private async *stream(address: string, after: bigint, o: WatchOptions): AsyncGenerator<WatchEvent | undefined> {
    const end = new AbortController();
    const stop = () => end.abort();
    o.signal?.addEventListener("abort", stop);
    // A connection whose packets are dropped reports no error: the timer does.
    let timer: NodeJS.Timeout | undefined;
    const listen = () => {
      clearTimeout(timer);
      timer = setTimeout(stop, o.idleMs ?? 10_000);
    };
    let seen = after;
    let partial: WatchEvent | undefined;
    try {
      listen();
      const node = createClient(NodeService, this.at(address));
      for await (const m of node.watchRoutes({ afterRevision: after, topics: o.topics ?? [] }, { signal: end.signal })) {
        clearTimeout(timer);
        if (m.event.case === "snapshot") {
          const s = m.event.value;
          if (s.first) {
            partial = { revision: m.revision, reset: true, changes: [] };
          } else if (partial?.revision !== m.revision) {
            throw new Error(`a part of a snapshot of revision ${m.revision} without its beginning`);
          }
          partial!.changes.push(...s.changes);
          const whole = s.last ? partial : undefined;
          if (whole !== undefined) {
            partial = undefined;
            seen = whole.revision;
          }
          yield whole;
        } else if (m.revision > seen) {
          seen = m.revision;
          yield { revision: m.revision, reset: false, changes: m.event.case === "delta" ? m.event.value.changes : [] };
        } else {
          yield undefined; // a controller that lags repeats what another one sent
        }
        listen();
      }
    } finally {
      clearTimeout(timer);
      o.signal?.removeEventListener("abort", stop);
      end.abort();
    }
  }

  /** at is the transport to one address. */
  private at(address: string): Transport {
    let t = this.transports.get(address);
    if (t === undefined) {
      t = createConnectTransport({
        baseUrl: `${this.options.tls === undefined ? "http" : "https"}://${address}`,
        httpVersion: "1.1",
        nodeOptions: this.options.tls,
      } as ConnectTransportOptions);
      this.transports.set(address, t);
    }
    return t;
  }
}
