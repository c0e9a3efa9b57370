import { randomUUID } from "node:crypto";
import { setTimeout as wait } from "node:timers/promises";
import { clone, create, type DescMessage, type DescMethodStreaming, type DescMethodUnary, type MessageInitShape, type MessageShape } from "@bufbuild/protobuf";
import { reflect } from "@bufbuild/protobuf/reflect";
import type { ContextValues, StreamResponse, Transport, UnaryResponse } from "@connectrpc/connect";
import { detailOf, isCancelled, neverSent, OutcomeUnknownError, UnreachableError } from "./errors.js";
import { ErrorReason } from "./gen/naradplane/v1/error_pb.js";
import type { Duration } from "@bufbuild/protobuf/wkt";

/** Party is one kind of daemon, of which any one can answer. */
export interface Party {
  what: "controller" | "agent";
  /** addresses are whom a call asks, in order. */
  addresses(request: unknown, signal?: AbortSignal): Promise<string[]>;
  /** at is the transport to one address. */
  at(address: string): Transport;
  /** answered notes who answered, and whom it named as the leader. */
  answered(address: string, leader: string | null): void;
  /** silent notes who did not answer. */
  silent(address: string): void;
  /** attemptTimeoutMs bounds one attempt. */
  attemptTimeoutMs: number;
  /** patienceMs is how long a call goes on while nobody answers. */
  patienceMs: number;
}

const leaderHeader = "Naradplane-Leader";
const pauseMs = 200;
const maxPauseMs = 2000;

export function milliseconds(d: Duration | undefined): number {
  return d === undefined ? 0 : Number(d.seconds) * 1000 + d.nanos / 1e6;
}

/** Failover is a transport over the addresses of a party. A stream of several messages stays with one address. */
export class Failover implements Transport {
  constructor(private readonly party: Party) {}

  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>, signal: AbortSignal | undefined, timeoutMs: number | undefined,
    header: HeadersInit | undefined, input: MessageInitShape<I>, contextValues?: ContextValues,
  ): Promise<UnaryResponse<I, O>> {
    const request = withRequestId(method.input, input);
    const start = Date.now();
    const signals = [signal, timeoutMs === undefined ? undefined : AbortSignal.timeout(timeoutMs)].filter((s) => s !== undefined);
    const end = signals.length > 0 ? AbortSignal.any(signals) : undefined;
    let unknown: unknown; // the first attempt that may have been applied
    for (;;) {
      const addresses = [...(await this.party.addresses(request, end))];
      const tried: { address: string; error: unknown }[] = [];
      let passed: unknown;
      for (let i = 0; i < addresses.length; i++) {
        const address = addresses[i]!;
        try {
          const res = await this.party.at(address).unary(method, end, this.attemptTimeout(request), header, request, contextValues);
          this.party.answered(address, res.header.get(leaderHeader));
          return res;
        } catch (err) {
          const detail = detailOf(err);
          if (detail === undefined) {
            if (isCancelled(end) && unknown === undefined && !mutates(this.party, method)) {
              throw err;
            }
            this.party.silent(address);
            tried.push({ address, error: err });
            if (!neverSent(err) && mutates(this.party, method)) {
              unknown ??= err;
              if (!hasRequestId(method.input)) {
                throw new OutcomeUnknownError(err);
              }
            }
          } else if (elsewhere(this.party, detail.reason, detail.retryAfter !== undefined)) {
            passed = err;
            if (detail.ownerAddress !== "" && !addresses.includes(detail.ownerAddress)) {
              addresses.push(detail.ownerAddress);
            }
          } else {
            this.party.answered(address, null);
            throw err;
          }
          if (isCancelled(end)) {
            break;
          }
        }
      }
      const over = isCancelled(end) || (passed === undefined && Date.now() - start >= this.party.patienceMs);
      if (!over) {
        const asked = milliseconds(detailOf(passed)?.retryAfter);
        await wait(Math.min(asked > 0 ? asked : pauseMs, maxPauseMs), undefined, { signal: end }).catch(() => undefined);
      }
      if (over || isCancelled(end)) {
        if (unknown !== undefined) {
          throw new OutcomeUnknownError(unknown);
        }
        throw passed ?? new UnreachableError(this.party.what, tried);
      }
    }
  }

  async stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodStreaming<I, O>, signal: AbortSignal | undefined, timeoutMs: number | undefined,
    header: HeadersInit | undefined, input: AsyncIterable<MessageInitShape<I>>, contextValues?: ContextValues,
  ): Promise<StreamResponse<I, O>> {
    const [address] = await this.party.addresses(undefined, signal);
    return this.party.at(address!).stream(method, signal, timeoutMs, header, input, contextValues);
  }

  /** attemptTimeout bounds one attempt; the time for which a Consume waits is added. */
  private attemptTimeout(request: unknown): number {
    return this.party.attemptTimeoutMs + milliseconds((request as { wait?: Duration }).wait);
  }
}

/** elsewhere says whether a refusal speaks for one address, or for one moment. */
function elsewhere(party: Party, reason: ErrorReason, retryAfter: boolean): boolean {
  switch (reason) {
    case ErrorReason.NO_LEADER:
      return true;
    case ErrorReason.LIMIT:
      return retryAfter;
    case ErrorReason.BLOCKED:
    case ErrorReason.NOT_OWNER:
      return party.what === "agent"; // one that drains takes no more records; a controller has none
  }
  return false;
}

/** mutates says whether a call changes something that its repetition would change again, if the cluster did not know it. */
function mutates(party: Party, method: DescMethodUnary): boolean {
  return party.what === "controller" && !/^(Get|List|Describe)/.test(method.name);
}

function hasRequestId(desc: DescMessage): boolean {
  return desc.field["requestId"] !== undefined;
}

function withRequestId<I extends DescMessage>(desc: I, input: MessageInitShape<I>): MessageShape<I> {
  const message = clone(desc, create(desc, input));
  const field = desc.field["requestId"];
  if (field?.fieldKind === "scalar") {
    const r = reflect(desc, message);
    if (r.get(field) === "") {
      r.set(field, randomUUID());
    }
  }
  return message;
}
