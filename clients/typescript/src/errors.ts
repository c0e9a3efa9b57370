import { Code, ConnectError } from "@connectrpc/connect";
import { ErrorDetailSchema, ErrorReason, type ErrorDetail } from "./gen/naradplane/v1/error_pb.js";

/** OutcomeUnknownError marks a mutation that may have been applied, or be applied later, and could not be repeated. */
export class OutcomeUnknownError extends Error {
  constructor(cause: unknown) {
    super(`the outcome is unknown: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
    this.name = "OutcomeUnknownError";
  }
}

/** UnreachableError says that no address answered, and why each did not. */
export class UnreachableError extends Error {
  constructor(
    readonly party: string,
    readonly attempts: ReadonlyArray<{ address: string; error: unknown }>,
  ) {
    super(
      `no ${party} answers: ` +
        attempts.map((a) => `${a.address}: ${a.error instanceof Error ? a.error.message : String(a.error)}`).join("; "),
    );
    this.name = "UnreachableError";
  }
}

/** detailOf returns the cluster's detail of an error; undefined when nobody answered or the answer was lost. */
export function detailOf(err: unknown): ErrorDetail | undefined {
  return err instanceof ConnectError ? err.findDetails(ErrorDetailSchema)[0] : undefined;
}

/** reasonOf returns why the cluster refused: what callers branch on. UNSPECIFIED when there is no detail. */
export function reasonOf(err: unknown): ErrorReason {
  return detailOf(err)?.reason ?? ErrorReason.UNSPECIFIED;
}

const unsent = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH"]);

/** neverSent says whether a request certainly did not leave. */
export function neverSent(err: unknown): boolean {
  for (let e: unknown = err; e instanceof Error; e = e.cause) {
    if (unsent.has((e as NodeJS.ErrnoException).code as string)) {
      return true;
    }
  }
  return false;
}

/** isCancelled says whether the caller ended the call. */
export function isCancelled(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true;
}

export { Code };
