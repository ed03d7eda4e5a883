/** What is known of a port's other end. */
export interface PortAbout {
  /** How many ports the frame has been given, from 1. */
  readonly epoch: number
  /** Of the page at the other end; "null" for a sandboxed one. */
  readonly origin: string
}

/** A port whose end can be seen: `addEventListener("close", ({ code, reason }) => ...)`. */
export interface FramePort extends MessagePort {
  readonly polybus: PortAbout & { release(): void }
  /** The other end is told. */
  close(code?: number, reason?: string): void
}

/** A hello that was not answered. */
export interface RejectedHello {
  readonly origin: string
  /** It came from the frame, but from a page of another origin; or from a window that is no served frame. */
  readonly reason: "origin" | "source"
}

/** Give ports to the pages of a frame, one for each page that is loaded into it. Call it before the frame's `src` is set. */
export function serveFrame(
  iframe: HTMLIFrameElement,
  options: {
    /** The one origin that the frame's page must have; "null" for a sandboxed one. */
    origin: string
    onport: (port: FramePort, about: PortAbout) => void
    onreject?: (hello: RejectedHello) => void
  },
): { readonly rejected: number; close(): void }

/** In a frame: the port to the page around it. */
export function connectToHost(options: {
  /** Those that the page around may have. */
  origins: string[]
  /** Milliseconds; 10000 by default. */
  timeout?: number
}): Promise<FramePort>

/** Join a port to a WebSocket: each frame of the one goes to the other as it is. When one ends, so does the other. */
export function pump(
  port: FramePort,
  url: string,
  options: {
    /** WebSocket sub-protocol. */
    protocol?: string
  } & (
    | {
        /** Shown to the server as `authorization: Bearer <token>`; the frame's own. */
        token: string
      }
    | {
        token?: undefined
        /** The frame may act with the cookies of the page. */
        credentials: "page"
      }
  ),
): { close(code?: number, reason?: string): void; readonly closed: Promise<{ code: number; reason: string }> }
