/** Types of a bus, as `polybus schema app:bus --typescript` writes them. */
export interface Contract {
  requests: Record<string, { body?: any; answer: any }>
  streams: Record<string, { body?: any; item: any }>
  /** What the server publishes, by its subject. */
  publications: Record<string, any>
  /** What the server takes of what a page publishes. */
  accepts: Record<string, any>
}

/** Without types of its own a bus takes everything. */
export type Any = Contract
type Names<C extends Contract, K extends keyof Contract> = Extract<keyof C[K], string>
type Kind<C extends Contract, K extends "requests" | "streams", S extends Names<C, K>> = C[K][S]
type Body<C extends Contract, K extends "requests" | "streams", S extends Names<C, K>> =
  undefined extends Kind<C, K, S>["body"] ? [body?: Kind<C, K, S>["body"], options?: Asking] : [body: Kind<C, K, S>["body"], options?: Asking]
type Answer<C extends Contract, S extends Names<C, "requests">> = C["requests"][S]["answer"]
type Item<C extends Contract, S extends Names<C, "streams">> = C["streams"][S]["item"]

/** Where the bus is: a URL, relative to the page too, or a port. */
export type Target = string | URL | MessagePort | Worker

export interface Options {
  /** Shown to the server as `authorization: Bearer <token>`. A function is asked before each attempt, and told why. */
  token?: string | null | ((why: { refused: boolean; failures: number }) => string | null | undefined | Promise<string | null | undefined>)
  /** Milliseconds for a request; 30000. */
  timeout?: number
  /** Pauses between attempts, in milliseconds: a random part of 250, 500, ..., at most 5000. What the server says goes before. */
  backoff?: { initial?: number; maximum?: number }
  /** Messages that may wait for the link, of 1 MiB together; 256. */
  queue?: number
  /** WebSocket sub-protocol; "ubre". */
  protocol?: string
  /** Node before 22 has none of its own: that of the package `ws`. */
  WebSocket?: new (url: string, protocols: string[]) => any
}

/** Returns at once, and goes on connecting until `close()`. A function is asked for the target before each attempt. */
export function connect<C extends Contract = Any>(target: Target | (() => Target | Promise<Target>), options?: Options): Bus<C>

export interface Asking {
  /** Milliseconds until `DeadlineExceeded`; of a stream, until it has been opened. */
  timeout?: number
  /** Takes it back: what waits is not sent, what runs at the server is cancelled. */
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
  /** Why it was lost or has ended: a code of WebSocket, and words. */
  readonly code?: number
  readonly reason?: string
  /** Milliseconds until the next attempt. */
  readonly delay?: number
  /** Attempts that have failed, one after the other. */
  readonly failures?: number
  readonly error?: Error
}

export class Bus<C extends Contract = Any> extends EventTarget {
  constructor(target: Target | (() => Target | Promise<Target>), options?: Options)
  readonly state: State
  /** Open for the first time; rejected if it is closed before: `Unauthorized`, `Forbidden`, `Disconnected` by `close()`. */
  readonly ready: Promise<void>
  /** What has been asked and not answered. */
  readonly pending: number
  /** Ask, and wait for the answer. Rejected with a `RequestError`, `DeadlineExceeded`, `Disconnected`, `QueueFull` or `EncodeError`. */
  request<S extends Names<C, "requests">>(subject: S, ...rest: Body<C, "requests", S>): Promise<Answer<C, S>>
  /** Ask for no answer: resolved when it was handed to the link. */
  notify<S extends Names<C, "requests">>(subject: S, ...rest: Body<C, "requests", S>): Promise<void>
  publish<S extends Names<C, "accepts">>(subject: S, body: C["accepts"][S], options?: Asking): Promise<void>
  /**
   * Hear what is published: `*` in a pattern is any one token, `>` at the end the rest. Told to the server again after each loss.
   * A refusal rejects `ready`, and is an event `error` of the bus if nobody waits for that.
   */
  subscribe<S extends Names<C, "publications">>(
    pattern: S,
    hear: (body: C["publications"][S], about: About<S>) => void,
    options?: { signal?: AbortSignal },
  ): Subscription
  /** Items as they come: leaving the loop, or the signal, stops the handler. Ends with `Disconnected`, and is not opened again. */
  stream<S extends Names<C, "streams">>(subject: S, ...rest: Body<C, "streams", S>): AsyncGenerator<Item<C, S>, void>
  /** The server asks this page. Call what is returned to take it away. */
  handle(subject: string, answer: (body: any, about: About & { readonly signal: AbortSignal }) => unknown): () => void
  /** For good: everything that waits is told. */
  close(reason?: string): void
  addEventListener(type: "state", listener: (event: StateEvent) => void, options?: boolean | AddEventListenerOptions): void
  addEventListener(type: "error", listener: (event: Event & { readonly error: BusError }) => void, options?: boolean | AddEventListenerOptions): void
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void
}

export interface Subscription extends Disposable {
  readonly pattern: string
  /** The server knows of it; rejected with `Forbidden` if it refuses, with `Disconnected` if it was closed before. */
  readonly ready: Promise<void>
  close(): void
}

export type CodeName =
  | "OK" | "CANCELLED" | "UNKNOWN" | "INVALID_ARGUMENT" | "DEADLINE_EXCEEDED" | "NOT_FOUND" | "ALREADY_EXISTS" | "PERMISSION_DENIED"
  | "RESOURCE_EXHAUSTED" | "FAILED_PRECONDITION" | "ABORTED" | "OUT_OF_RANGE" | "UNIMPLEMENTED" | "INTERNAL" | "UNAVAILABLE"
  | "DATA_LOSS" | "UNAUTHENTICATED"
export const Code: Readonly<Record<CodeName, number>>

export class BusError extends Error {}
/** The other end has answered with an error; thrown by a handler of a page it is its answer. */
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
/** The link is lost. If `sent` is false the request has not run, and can be asked again. */
export class Disconnected extends BusError {
  readonly reason: string
  readonly sent: boolean
}
export class QueueFull extends BusError {}
/** `JSON.stringify` would have written something else than was meant. */
export class EncodeError extends BusError {
  /** Where in the body: `$.user.name`. */
  readonly path: string
}
