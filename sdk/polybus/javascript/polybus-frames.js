// The browser's side of message ports: a page gives a port to a frame, a frame gets one from its page, and a page
// joins a port to a WebSocket. No build step and no dependencies: <script type="module"> and import.
//
// The window carries only the handshake, the port frames: text as string, binary as ArrayBuffer. Other messages between
// the two ends are text that begins with U+0000; they are handled here, and the application sees only frames.
// The reference, "Message ports", describes all of them.

const TAG = 'polybus'
const VERSION = 1
const HELLO_EVERY = 50 // milliseconds
const REMEMBERED = 16 // nonces of a frame that were answered
const OFFERED = 4 // ports of a frame that no page has taken yet
const ACK_FRAMES = 64
const ACK_SIZE = 64 * 1024
const BEFORE_OPEN = 1024 * 1024 // bytes that wait for a WebSocket to open
const HIGH_WATER = 256 * 1024 // in a WebSocket's buffer; above it frames are not acknowledged
const MOST = 4 * 1024 * 1024 // in a WebSocket's buffer, or unacknowledged by the port: beyond it the pump ends
const MOST_FRAMES = 4096
const LOOK_EVERY = 20 // milliseconds, while a WebSocket's buffer is full
const PING_EVERY = 15000 // milliseconds of silence
const PING_TIMEOUT = 8000

/**
 * Give each page that a frame loads a port. Call it before the frame's `src` is set.
 *
 * @param {HTMLIFrameElement} iframe
 * @param {object} options
 * @param {string} options.origin required origin of the frame's page; 'null' for a sandboxed one
 * @param {(port: MessagePort, about: {epoch: number, origin: string}) => void} options.onport
 * @param {(hello: {origin: string, reason: 'origin' | 'source'}) => void} [options.onreject]
 */
export function serveFrame(iframe, { origin, onport, onreject } = {}) {
  checkOrigin(origin)
  if (!(iframe instanceof Object && 'contentWindow' in iframe)) throw new TypeError('serveFrame(iframe, ...): iframe must be an <iframe> element')
  if (typeof onport !== 'function') throw new TypeError('serveFrame(iframe, {origin, onport}): onport must be a function')
  if ([...frames].some((served) => served.iframe === iframe)) throw new Error('serveFrame: this frame is served already: close that first')
  const served = { iframe, origin, onport, onreject, epoch: 0, nonces: [], offers: new Map(), port: null, rejected: 0 }
  if (frames.size === 0) addEventListener('message', heard)
  frames.add(served)
  return {
    get rejected() {
      return served.rejected
    },
    close() {
      if (!frames.delete(served)) return
      if (frames.size === 0) removeEventListener('message', heard)
      withdraw(served, Infinity)
      retire(served, 'the host has closed the port of the frame')
    },
  }
}

const frames = new Set()

function heard({ data, source, origin, isTrusted }) {
  if (!isTrusted || data?.tag !== TAG || data.v !== VERSION || (data.type !== 'hello' && data.type !== 'taken')) return
  // Read contentWindow each time: a frame that was removed and put back has another one.
  const served = [...frames].find(({ iframe }) => source !== null && iframe.contentWindow === source)
  if (!served) {
    for (const each of frames) reject(each, { origin, reason: 'source' })
  } else if (origin !== served.origin) {
    reject(served, { origin, reason: 'origin' })
  } else if (data.type === 'taken') {
    taken(served, data.nonce)
  } else if (typeof data.nonce === 'string' && data.nonce && data.nonce.length <= 64 && !served.nonces.includes(data.nonce)) {
    offer(served, data.nonce)
  }
}

function reject(served, hello) {
  served.rejected++
  served.onreject?.(hello)
}

// A hello may be late, and its page gone: the port counts only when a page has taken it.
function offer(served, nonce) {
  served.nonces = [...served.nonces, nonce].slice(-REMEMBERED)
  const epoch = ++served.epoch
  const { port1, port2 } = new MessageChannel()
  withdraw(served, epoch - OFFERED)
  served.offers.set(nonce, { port: port1, epoch })
  // An opaque origin cannot be named; the nonce identifies the receiver.
  const target = served.origin === 'null' ? '*' : served.origin
  served.iframe.contentWindow.postMessage({ tag: TAG, type: 'port', v: VERSION, nonce, epoch }, target, [port2])
}

function taken(served, nonce) {
  const offered = served.offers.get(nonce)
  if (!offered) return
  const { port, epoch } = offered
  served.offers.delete(nonce)
  withdraw(served, epoch)
  retire(served, 'a newer page of the frame took over')
  served.port = port
  served.onport(manage(port, { epoch, origin: served.origin }), { epoch, origin: served.origin })
}

// Withdraw the ports offered until then.
function withdraw(served, epoch) {
  for (const [nonce, offered] of served.offers) {
    if (offered.epoch > epoch) continue
    served.offers.delete(nonce)
    offered.port.postMessage('\0bye 1001 the port was not taken in time')
    offered.port.close()
  }
}

function retire(served, reason) {
  const port = served.port
  served.port = null
  if (port) end(port, 1001, reason)
}

/**
 * Connect a frame to its surrounding page.
 *
 * @param {object} options
 * @param {string[]} options.origins allowed origins of the surrounding page
 * @param {number} [options.timeout] milliseconds
 * @returns {Promise<MessagePort>}
 */
export function connectToHost({ origins, timeout = 10000 } = {}) {
  if (!Array.isArray(origins) || !origins.length) throw new TypeError('connectToHost({origins}): name the origins of the host')
  origins.forEach(checkOrigin)
  if (parent === self) return Promise.reject(new Error('connectToHost: there is no page around this one'))
  const nonce = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, '0')).join('')
  return new Promise((resolve, reject) => {
    function hello() {
      for (const origin of origins) {
        // The browser delivers nothing to a page of another origin.
        parent.postMessage({ tag: TAG, type: 'hello', v: VERSION, nonce }, origin === 'null' ? '*' : origin)
      }
    }
    function answered({ data, source, origin, ports, isTrusted }) {
      if (!isTrusted || source !== parent || !origins.includes(origin) || data?.tag !== TAG) return
      if (data.type !== 'port' || data.nonce !== nonce || ports.length !== 1) return
      stop()
      parent.postMessage({ tag: TAG, type: 'taken', v: VERSION, nonce }, origin === 'null' ? '*' : origin)
      const port = manage(ports[0], { epoch: data.epoch, origin })
      // Ports do not report that their page is gone: the page must. One that is kept for the back button comes back with its host.
      const goodbye = ({ persisted }) => persisted || end(port, 1001, 'the page is gone')
      addEventListener('pagehide', goodbye)
      port.addEventListener('close', () => removeEventListener('pagehide', goodbye))
      resolve(port)
    }
    function stop() {
      clearInterval(every)
      clearTimeout(limit)
      removeEventListener('message', answered)
    }
    addEventListener('message', answered)
    const every = setInterval(hello, HELLO_EVERY)
    const limit = setTimeout(() => {
      stop()
      reject(new Error(`connectToHost: no page of ${origins.join(', ')} answered within ${timeout} ms`))
    }, timeout)
    hello()
  })
}

// -- the words on a port -----------------------------------------------------------------------------------------------

const managed = new WeakMap()

// From here on the application sees only frames. A port that ends gets a 'close' event with `code` and `reason`, which
// browsers do not emit, and `close(code, reason)` notifies the other end.
function manage(port, about) {
  const state = {
    port,
    ours: false, // the other end has greeted
    over: false,
    taken: 0, // frames, and how many of them are acknowledged
    acked: 0,
    size: 0,
    heard: performance.now(),
    pinged: 0,
    timer: 0,
    pump: null,
    released: false,
    shut: port.close.bind(port),
  }
  managed.set(port, state)
  port.close = (code = 1000, reason = '') => end(port, checkCode(code), `${reason}`)
  // A polybus at this end (`JSPort`) sends these itself.
  const release = () => (state.released = true)
  Object.defineProperty(port, 'polybus', { value: Object.freeze({ ...about, release }) })
  port.addEventListener('message', (event) => {
    const { data } = event
    if (state.released) return
    state.heard = performance.now()
    if (typeof data !== 'string' || data.charCodeAt(0) !== 0) {
      if (!state.pump) took(state, sizeOf(data))
    } else if (data.charCodeAt(1) !== 0) {
      event.stopImmediatePropagation()
      control(state, data.slice(1))
    } else if (!state.pump) {
      // A frame that itself begins with U+0000: no protocol of polybus writes one.
      event.stopImmediatePropagation()
      took(state, sizeOf(data))
    }
  })
  port.addEventListener('messageerror', () => {
    if (!state.released) end(port, 1003, 'a message came that cannot be read here')
  })
  return port
}

function took(state, size) {
  state.taken++
  state.size += size
  if (state.ours && (state.taken - state.acked >= ACK_FRAMES || state.size >= ACK_SIZE)) acknowledge(state)
}

function acknowledge(state) {
  state.acked = state.taken
  state.size = 0
  state.port.postMessage(`\0ack ${state.taken}`)
}

function control(state, text) {
  const [word] = text.split(' ', 1)
  const rest = text.slice(word.length + 1)
  const fail = (reason) => end(state.port, 1002, reason)
  if (word === 'bye') over(state, Number.parseInt(rest) || 1002, rest.replace(/^\d* ?/, ''))
  else if (word === 'hi') greeted(state, rest)
  else if (!state.ours) fail(`'${word.slice(0, 20)}' before a greeting`)
  else if (word === 'ping') state.port.postMessage('\0pong')
  else if (word === 'ack') state.pump?.acknowledged(rest)
  else if (word !== 'pong') fail(`'${word.slice(0, 20)}' is no control message`)
}

function greeted(state, text) {
  if (state.ours) return
  const said = readHello(text)
  if (!said) {
    end(state.port, 1002, `unsupported greeting, expected version ${VERSION}: ${text.slice(0, 80)}`)
    return
  }
  state.ours = true
  state.timer = setInterval(() => watch(state), 1000)
  if (state.pump) state.pump.greeted(said)
  else state.port.postMessage(`\0hi {"v":${VERSION}}`)
}

function readHello(text) {
  const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value)
  try {
    const said = JSON.parse(text || '{}')
    const { v = VERSION, protocol = null, headers = {} } = said
    const known = v === VERSION && (protocol === null || typeof protocol === 'string')
    return isObject(said) && known && isObject(headers) ? { protocol, headers } : null
  } catch {
    return null
  }
}

// Acknowledge the rest, and ping a silent peer.
function watch(state) {
  if (state.acked !== state.taken && !state.pump?.held) acknowledge(state)
  const now = performance.now()
  if (now - state.heard < PING_EVERY) state.pinged = 0
  else if (!state.pinged) {
    state.pinged = now
    state.port.postMessage('\0ping')
  } else if (now - state.pinged >= PING_TIMEOUT) {
    end(state.port, 1006, `no answer to ping within ${PING_TIMEOUT / 1000} s`)
  }
}

// Say goodbye to the other end.
function end(port, code, reason) {
  const state = managed.get(port)
  if (state.over) return
  port.postMessage(`\0bye ${code} ${reason.slice(0, 120)}`)
  over(state, code, reason)
}

function over(state, code, reason) {
  if (state.over) return
  state.over = true
  clearInterval(state.timer)
  state.shut()
  const event = new Event('close')
  event.code = code
  event.reason = reason
  state.port.dispatchEvent(event)
}

// -- between a port and a WebSocket ------------------------------------------------------------------------------------

/**
 * Join a port to a server: frames pass unchanged in both directions. When one ends, so does the other.
 *
 * @param {MessagePort} port of `serveFrame` or `connectToHost`
 * @param {string} url of the WebSocket
 * @param {object} options
 * @param {string} [options.token] the frame's own token, sent as `authorization: Bearer <token>`
 * @param {'page'} [options.credentials] without a token: the frame may act with the cookies of the page
 * @param {string} [options.protocol] WebSocket sub-protocol
 */
export function pump(port, url, { token, credentials, protocol } = {}) {
  if (!token && credentials !== 'page') {
    throw new TypeError(
      "pump(port, url, {token}): without a token of its own the frame would act with the page's cookies: " +
        "give it one, or say {credentials: 'page'}",
    )
  }
  const state = managed.get(port)
  if (!state) throw new TypeError('pump(port, ...): port must come from serveFrame or connectToHost')
  if (state.pump || state.released || state.taken) throw new TypeError('pump(port, ...): this port is already in use')
  const offers = [...(protocol ? [protocol] : []), ...(token ? [`polybus.token.${token}`] : [])]
  return new Pump(state, new WebSocket(url, offers), protocol).face
}

class Pump {
  constructor(state, socket, protocol) {
    this.state = state
    this.socket = socket
    this.waiting = [] // frames for a socket that is not open yet
    this.waitingSize = 0
    this.given = [] // sizes of frames that the port has not acknowledged
    this.givenSize = 0
    this.givenAcked = 0
    this.look = 0
    const closed = new Promise((resolve) => {
      this.resolve = resolve
    })
    this.protocol = protocol
    this.face = { close: (code = 1000, reason = '') => this.stop(checkCode(code), `${reason}`), closed }
    state.pump = this
    socket.binaryType = 'arraybuffer'
    socket.onopen = () => this.opened()
    socket.onmessage = ({ data }) => this.down(data)
    socket.onclose = ({ code, reason }) => this.stop(code, reason || 'the connection to the server ended')
    // A page that is kept for the back button is out of reach: its socket would stay open.
    const left = () => socket.close()
    addEventListener('pagehide', left)
    state.port.addEventListener('close', ({ code, reason }) => {
      removeEventListener('pagehide', left)
      this.stop(code, reason)
    })
    state.port.addEventListener('message', ({ data }) => this.up(data))
    state.port.start()
  }

  // The port has said hello: it gets ours when the server has admitted it. Browsers' WebSockets take no headers.
  greeted({ protocol, headers }) {
    const [header] = Object.keys(headers)
    if (header !== undefined) {
      this.stop(1008, `a pump cannot pass on headers (${header.slice(0, 40)}): the page gives its frame a token`)
    } else if (this.protocol && protocol && protocol !== this.protocol) {
      this.stop(1002, `this side uses ${this.protocol}, not ${protocol.slice(0, 64)}`)
    } else if (this.socket.readyState === WebSocket.OPEN) this.greet()
  }

  greet() {
    this.state.port.postMessage(`\0hi ${JSON.stringify({ v: VERSION, protocol: this.protocol })}`)
  }

  opened() {
    if (this.state.ours) this.greet()
    const waiting = this.waiting
    this.waiting = []
    this.waitingSize = 0
    for (const data of waiting) this.send(data)
  }

  up(data) {
    if (typeof data !== 'string' && !(data instanceof ArrayBuffer)) {
      this.stop(1003, 'a frame is a string or an ArrayBuffer')
    } else if (this.socket.readyState === WebSocket.CONNECTING) {
      this.waiting.push(data)
      this.waitingSize += sizeOf(data)
      if (this.waitingSize > BEFORE_OPEN || this.waiting.length > MOST_FRAMES) this.stop(1013, 'too much before the server was reached')
    } else this.send(data)
  }

  send(data) {
    if (this.socket.readyState !== WebSocket.OPEN) return
    this.socket.send(typeof data === 'string' && data.charCodeAt(0) === 0 ? data.slice(1) : data)
    this.state.taken++
    this.state.size += sizeOf(data)
    this.hold()
  }

  // Frames that the socket has not written stay unacknowledged, so that a polybus sender stops.
  hold() {
    const { state, socket } = this
    if (socket.bufferedAmount > MOST) this.stop(1013, 'the server does not read')
    else if (this.held) this.look ||= setTimeout(() => ((this.look = 0), this.hold()), LOOK_EVERY)
    else if (state.ours && (state.taken - state.acked >= ACK_FRAMES || state.size >= ACK_SIZE)) acknowledge(state)
  }

  get held() {
    return this.socket.bufferedAmount > HIGH_WATER
  }

  down(data) {
    const { state } = this
    if (state.over) return
    const size = sizeOf(data)
    if (typeof data === 'string') state.port.postMessage(data.charCodeAt(0) === 0 ? `\0${data}` : data)
    else state.port.postMessage(data, [data])
    if (!state.ours) {
      this.givenAcked++
      return
    }
    this.given.push(size)
    this.givenSize += size
    // Browsers cannot pause reading from a WebSocket.
    if (this.givenSize > MOST || this.given.length > MOST_FRAMES) this.stop(1013, 'the frame does not read')
  }

  acknowledged(text) {
    const count = /^\d{1,15}$/.test(text) ? Number(text) : -1
    const fresh = count - this.givenAcked
    if (!(fresh >= 0 && fresh <= this.given.length)) {
      const most = this.givenAcked + this.given.length
      this.stop(1002, `an acknowledgement of '${text.slice(0, 20)}' messages: between ${this.givenAcked} and ${most}`)
      return
    }
    for (const size of this.given.splice(0, fresh)) this.givenSize -= size
    this.givenAcked = count
  }

  stop(code = 1000, reason = '') {
    if (!this.resolve) return
    const resolve = this.resolve
    this.resolve = null
    clearTimeout(this.look)
    this.waiting = []
    this.given = []
    end(this.state.port, code, reason)
    // A page may only use 1000, 3xxx and 4xxx; a reason has at most 123 bytes.
    this.socket.close(code >= 3000 && code < 5000 ? code : 1000, reason.slice(0, 40))
    resolve({ code, reason })
  }
}

function sizeOf(data) {
  return typeof data === 'string' ? data.length : (data?.byteLength ?? 0)
}

function checkCode(code) {
  if (Number.isInteger(code) && code >= 1000 && code < 5000) return code
  throw new RangeError(`close(${code}): the code must be a WebSocket close code from 1000 to 4999`)
}

function checkOrigin(origin) {
  let exact = origin === 'null'
  try {
    exact ||= new URL(origin).origin === origin
  } catch {
    // not a URL
  }
  if (!exact) throw new TypeError(`${JSON.stringify(origin)} must be exactly one origin, such as "https://example.org", or "null" for a sandboxed frame`)
}
