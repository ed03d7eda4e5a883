/** Facts about a port's other end. */
export interface PortAbout {
  /** Number of this port among the frame's ports, from 1. */
  readonly epoch: number
  /** Origin of the page at the other end; "null" for a sandboxed one. */
  readonly origin: string
}

/** A port that reports its end: `addEventListener("close", ({ code, reason }) => ...)`. */
export interface FramePort extends MessagePort {
  readonly polybus: PortAbout & { release(): void }
  /** Also notifies the other end. */
  close(code?: number, reason?: string): void
}

/** A hello that was not answered. */
export interface RejectedHello {
  readonly origin: string
  /** From a page of another origin in the frame, or from a window that is not a served frame. */
  readonly reason: "origin" | "source"
}

/** Give each page that a frame loads a port. Call it before the frame's `src` is set. */
export function serveFrame(
  iframe: HTMLIFrameElement,
  options: {
    /** Required origin of the frame's page; "null" for a sandboxed one. */
    origin: string
    onport: (port: FramePort, about: PortAbout) => void
    onreject?: (hello: RejectedHello) => void
  },
): { readonly rejected: number; close(): void }

/** Connect a frame to its surrounding page. */
export function connectToHost(options: {
  /** Allowed origins of the surrounding page. */
  origins: string[]
  /** Milliseconds; 10000 by default. */
  timeout?: number
}): Promise<FramePort>

/** Join a port to a WebSocket: frames pass unchanged in both directions. When one ends, so does the other. */
export function pump(
  port: FramePort,
  url: string,
  options: {
    /** WebSocket sub-protocol. */
    protocol?: string
  } & (
    | {
        /** The frame's own token, sent as `authorization: Bearer <token>`. */
        token: string
      }
    | {
        token?: undefined
        /** The frame may act with the cookies of the page. */
        credentials: "page"
      }
  ),
): { close(code?: number, reason?: string): void; readonly closed: Promise<{ code: number; reason: string }> }
