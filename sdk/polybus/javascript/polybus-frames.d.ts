/** Information about the other end of a port. */
export interface PortAbout {
  /** Number of this port among the frame's ports, from 1. */
  readonly epoch: number
  /** Origin of the page at the other end, or "null" if it is sandboxed. */
  readonly origin: string
}

/** A port that emits an event when it closes: `addEventListener("close", ({ code, reason }) => ...)`. */
export interface FramePort extends MessagePort {
  readonly polybus: PortAbout & { release(): void }
  /** Also notifies the other end. */
  close(code?: number, reason?: string): void
}

/** A hello that was not answered. */
export interface RejectedHello {
  readonly origin: string
  /** `origin` if the frame's page has another origin, `source` if the window is not a served frame. */
  readonly reason: "origin" | "source"
}

/** Give a port to each page that a frame loads. Call this before setting the frame's `src`. */
export function serveFrame(
  iframe: HTMLIFrameElement,
  options: {
    /** Required origin of the frame's page, or "null" if it is sandboxed. */
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

/** Join a port to a WebSocket. Frames pass unchanged in both directions. When either side closes, so does the other. */
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
        /** Let the frame act with the page's cookies. */
        credentials: "page"
      }
  ),
): { close(code?: number, reason?: string): void; readonly closed: Promise<{ code: number; reason: string }> }
