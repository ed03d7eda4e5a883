/** Types of a bus, from `polybus schema app:bus --typescript`. */
export interface Contract {
  requests: Record<string, { body?: any; answer: any }>
  streams: Record<string, { body?: any; item: any }>
  /** Publications of the server by subject. */
  publications: Record<string, any>
  /** Publications of a page that the server accepts. */
  accepts: Record<string, any>
}

/** An untyped bus accepts everything. */
export type Any = Contract
type Names<C extends Contract, K extends keyof Contract> = Extract<keyof C[K], string>
type Kind<C extends Contract, K extends "requests" | "streams", S extends Names<C, K>> = C[K][S]
type Body<C extends Contract, K extends "requests" | "streams", S extends Names<C, K>> =
  undefined extends Kind<C, K, S>["body"] ? [body?: Kind<C, K, S>["body"], options?: Asking] : [body: Kind<C, K, S>["body"], options?: Asking]
type Answer<C extends Contract, S extends Names<C, "requests">> = C["requests"][S]["answer"]
type Item<C extends Contract, S extends Names<C, "streams">> = C["streams"][S]["item"]

/** Address of the bus: a URL, which may be relative to the page, or a port. */
export type Target = string | URL | MessagePort | Worker

export interface Options {
  /** Sent to the server as `authorization: Bearer <token>`. A function is called before each attempt, with its reason. */
  token?: string | null | ((why: { refused: boolean; failures: number }) => string | null | undefined | Promise<string | null | undefined>)
  /** Milliseconds for a request; default 30000. */
  timeout?: number
  /** Pauses between attempts, in milliseconds: a random part of 250, 500, ..., at most 5000. The server may override them. */
  backoff?: { initial?: number; maximum?: number }
  /** Messages that may wait for the link, up to 1 MiB; default 256. */
  queue?: number
  /** WebSocket sub-protocol; default "ubre". */
  protocol?: string
  /** For Node before 22, which lacks one: the class of the package `ws`. */
  WebSocket?: new (url: string, protocols: string[]) => any
}

/** Return at once, and keep connecting until `close()`. A function returns the target before each attempt. */
export function connect<C extends Contract = Any>(target: Target | (() => Target | Promise<Target>), options?: Options): Bus<C>

export interface Asking {
  /** Milliseconds until `DeadlineExceeded`; for a stream, until it is open. */
  timeout?: number
  /** Cancels the call, also at the server. */
  signal?: AbortSignal
  headers?: Record<string, string>
}

export interface About<S = string> {
  readonly subject: S
  readonly headers: Record<string, string>
}

export type State = "connecting" | "open" | "waiting" | "closed"

export interface StateEvent extends Event {
  readonly state: State
  /** WebSocket close code and reason of a link that was lost, was closed or never opened. */
  readonly code?: number
  readonly reason?: string
  /** Milliseconds until the next attempt. */
  readonly delay?: number
  /** Failed attempts in a row. */
  readonly failures?: number
  readonly error?: Error
}

export class Bus<C extends Contract = Any> extends EventTarget {
  constructor(target: Target | (() => Target | Promise<Target>), options?: Options)
  readonly state: State
  /** Resolves when the bus first opens. Rejects if it is closed before: `Unauthorized`, `Forbidden`, `Disconnected` by `close()`. */
  readonly ready: Promise<void>
  /** Number of unanswered calls. */
  readonly pending: number
  /** Send a request and resolve with its answer. Rejects with a `RequestError`, `DeadlineExceeded`, `Disconnected`, `QueueFull` or `EncodeError`. */
  request<S extends Names<C, "requests">>(subject: S, ...rest: Body<C, "requests", S>): Promise<Answer<C, S>>
  /** Send a request without an answer. Resolves when the message is handed to the link. */
  notify<S extends Names<C, "requests">>(subject: S, ...rest: Body<C, "requests", S>): Promise<void>
  publish<S extends Names<C, "accepts">>(subject: S, body: C["accepts"][S], options?: Asking): Promise<void>
  /**
   * Receive publications. In a pattern, `*` matches one token and a final `>` the rest. A reconnect restores the subscription.
   * A refusal rejects `ready`. If `ready` is not awaited, the bus emits the event `error`.
   */
  subscribe<S extends Names<C, "publications">>(
    pattern: S,
    hear: (body: C["publications"][S], about: About<S>) => void,
    options?: { signal?: AbortSignal },
  ): Subscription
  /** Yield items as they arrive. Leaving the loop, or the signal, stops the handler. A lost link ends the stream with `Disconnected`. */
  stream<S extends Names<C, "streams">>(subject: S, ...rest: Body<C, "streams", S>): AsyncGenerator<Item<C, S>, void>
  /** Handle requests of the server to this page. Call the returned function to remove the handler. */
  handle(subject: string, answer: (body: any, about: About & { readonly signal: AbortSignal }) => unknown): () => void
  /** Close for good: pending calls are rejected. */
  close(reason?: string): void
  addEventListener(type: "state", listener: (event: StateEvent) => void, options?: boolean | AddEventListenerOptions): void
  addEventListener(type: "error", listener: (event: Event & { readonly error: BusError }) => void, options?: boolean | AddEventListenerOptions): void
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void
}

export interface Subscription extends Disposable {
  readonly pattern: string
  /** Resolves when the server confirms it. Rejects with `Forbidden` if the server refuses, with `Disconnected` if it was closed before. */
  readonly ready: Promise<void>
  close(): void
}

export type CodeName =
  | "OK" | "CANCELLED" | "UNKNOWN" | "INVALID_ARGUMENT" | "DEADLINE_EXCEEDED" | "NOT_FOUND" | "ALREADY_EXISTS" | "PERMISSION_DENIED"
  | "RESOURCE_EXHAUSTED" | "FAILED_PRECONDITION" | "ABORTED" | "OUT_OF_RANGE" | "UNIMPLEMENTED" | "INTERNAL" | "UNAVAILABLE"
  | "DATA_LOSS" | "UNAUTHENTICATED"
export const Code: Readonly<Record<CodeName, number>>

export class BusError extends Error {
  readonly text: string
}
/** The other end answered with an error. A handler of the page throws it to answer with one. */
export class RequestError extends BusError {
  constructor(text?: string, facts?: { code?: number; reason?: string | null; detail?: any; subject?: string | null })
  readonly code: number
  readonly text: string
  readonly reason: string | null
  readonly detail: any
  readonly subject: string | null
}
export class NoHandler extends RequestError {}
export class NotFound extends RequestError {}
export class Conflict extends RequestError {}
export class BadRequest extends RequestError {}
export class Unauthorized extends RequestError {}
export class Forbidden extends RequestError {}
export class TooLarge extends RequestError {}
export class TooManyRequests extends RequestError {}
export class Unavailable extends RequestError {}
export class RemoteError extends RequestError {}
export class DeadlineExceeded extends BusError {
  readonly subject: string
  readonly where: "local" | "remote"
  readonly reason: string | null
  readonly detail: any
}
/** The link is lost. If `sent` is false the request has not run, and a retry is safe. */
export class Disconnected extends BusError {
  readonly reason: string
  readonly sent: boolean
}
export class QueueFull extends BusError {}
/** `JSON.stringify` would change or drop a value. */
export class EncodeError extends BusError {
  /** Path of the value in the body, such as `$.user.name`. */
  readonly path: string
}
