// The client of a bus, for pages, workers and Node: requests, publications and streams over a WebSocket or a message port, with
// automatic reconnects. It has no dependencies and no build step, and importing it has no side effects:
// import { connect } from './polybus.js'
//
// The protocol is UBRE in JSON with the extensions of polybus. Times are in milliseconds.

const HELLO = '_polybus.hello'
const REFUSES = 'polybus.closes' // the server explains a refusal with this sub-protocol, because pages do not see the HTTP status
const NOT_READ = 'the bus is leaving' // close reason of a server that has answered every request it read
const TIMEOUT = 30000
const OPENING = 10000
const SILENCE = 25000 // of the server, before a ping
const PATIENCE = 5000 // for the answer to a ping
const AWAKE = 6000 // a link reported lost this soon after a wake-up was lost during the sleep
const CREDIT = 64 // items of a stream in flight
const CONFIRMED = 1024 // patterns confirmed per hello
const MIB = 1024 * 1024
const now = () => performance.now()
const quote = JSON.stringify
const isTime = (value, least, most) => Math.min(Math.max(value, least), most) === value // false for strings and arrays
// A longer timer would fire at once.
const later = (act, delay) => setTimeout(act, Math.min(delay, 2 ** 31 - 1))
const report = (error) => (globalThis.reportError ?? console.error)(error)

// -- errors: the classes of Python ---------------------------------------------------------------------------------------

const NAMES = (
  'OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED ' +
  'FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED'
).split(' ')
export const Code = Object.fromEntries(NAMES.map((name, code) => [name, code]))

export class BusError extends Error {
  constructor(text, facts) {
    super(text)
    Object.assign(this, { text }, facts)
  }
}

export class RequestError extends BusError {
  constructor(text = '', { code = new.target.code ?? 2, reason = new.target.reason ?? null, detail = null, subject = null } = {}) {
    super(`${NAMES[code]}${subject === null ? '' : ` (${subject})`}: ${text}`, { code, text, reason, detail, subject })
  }
}

// Bundlers rename classes, so names are strings.
BusError.prototype.name = 'BusError'
RequestError.prototype.name = 'RequestError'
const kind = (name, code, reason) => {
  const made = class extends (code ? RequestError : BusError) {}
  made.prototype.name = name
  KINDS[code] ??= made // the first of those that have a code
  return Object.assign(made, { code, reason })
}
const KINDS = []
export const NoHandler = kind('NoHandler', 12)
export const NotFound = kind('NotFound', 5)
export const Conflict = kind('Conflict', 9)
export const BadRequest = kind('BadRequest', 3)
export const Unauthorized = kind('Unauthorized', 16)
export const Forbidden = kind('Forbidden', 7)
export const TooManyRequests = kind('TooManyRequests', 8)
export const TooLarge = kind('TooLarge', 8, 'too_large')
export const Unavailable = kind('Unavailable', 14)
export const RemoteError = kind('RemoteError', 2)
export const DeadlineExceeded = kind('DeadlineExceeded')
export const Disconnected = kind('Disconnected')
export const QueueFull = kind('QueueFull')
export const EncodeError = kind('EncodeError')

KINDS[6] = KINDS[10] = Conflict

// The error of a `fail` frame or of the end of a stream. A peer that sends no code is not polybus; its body may be an Error.
function errorOf({ code, text, body, reason = null, detail }, subject) {
  const said = typeof body === 'string'
  code ??= body === 'NotFound' ? 12 : 2
  code = (NAMES[code] && +code) || 2
  text ??= said ? body : (body?.message ?? '')
  detail ??= said ? null : (body ?? null)
  if (code === 4) return expired(subject, 'remote', text, reason, detail)
  const Kind = reason === TooLarge.reason && code === 8 ? TooLarge : (KINDS[code] ?? RemoteError)
  return new Kind(text, { code, reason, detail, subject })
}

function expired(subject, where, text, reason = null, detail = null) {
  text ||= 'no answer in time'
  return new DeadlineExceeded(`${subject}: ${text}`, { subject, where, text, reason, detail })
}

const disconnected = (reason, sent) =>
  new Disconnected(`${reason || 'the link is down'}; it ${sent ? 'may have' : 'has not'} run`, { reason, sent })

// -- bodies: values that JSON.stringify would change are refused ----------------------------------------------------------

function encode(value) {
  const wrong = misfit(value, 0)
  if (!wrong) return quote(value)
  const path = '$' + wrong.path
  throw new EncodeError(path + ': cannot encode ' + wrong.what, { path })
}

// Find the first part of a value that JSON would change: what it is, and its path.
function misfit(value, depth) {
  const type = typeof value
  let what
  if (type === 'string') what = /\p{Cs}/u.test(value) && 'a lone surrogate'
  // Numbers beyond 2^53 lose digits.
  else if (type === 'number') what = !Number.isSafeInteger(value) && !(value % 1) && `${value}`
  else if (type === 'boolean' || value === null) return
  // A Buffer of Node would become an object, and an invalid date null.
  else if (value?.toJSON && !ArrayBuffer.isView(value) && value.toJSON() !== null) return misfit(value.toJSON(), depth)
  else if (depth > 127) what = 'over 128 levels' // or an object that contains itself
  else if (Array.isArray(value)) {
    for (let index = 0; index < value.length; index++) {
      const wrong = misfit(value[index], depth + 1)
      if (wrong) return { ...wrong, path: '[' + index + ']' + wrong.path }
    }
  } else {
    what = {}.toString.call(value).slice(8, -1)
    if (what === 'Object') {
      for (const key of Object.keys(value)) {
        const wrong = misfit(key) || (value[key] !== undefined && misfit(value[key], depth + 1))
        if (wrong) return { ...wrong, path: '.' + key + wrong.path }
      }
      return
    }
  }
  return what && { what, path: '' }
}

const member = (body) => (body === undefined ? '' : `,"body":${encode(body)}`)

// -- subjects ---------------------------------------------------------------------------------------------------------------

// Return a regular expression for the subjects of a pattern, or undefined if it has no wildcards.
function fitting(pattern) {
  const mark = pattern.includes('/') ? '/' : '.'
  let wild = false
  const parts = pattern.split(mark).map((token) => {
    const any = token === '>' ? '.+' : /^(\*|\{\w+\})$/.test(token) && `[^${mark}]+`
    wild ||= any
    return any || token.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&')
  })
  return wild ? new RegExp(`^${parts.join(`\\${mark}`)}$`, 's') : undefined
}

// -- links ------------------------------------------------------------------------------------------------------------------

function overSocket(socket, opened, heard, lost) {
  // Browsers do not say whether the server is down or answered 403 or 404.
  let why = `${socket.url} never opened: port, path, Origin? see the server log`
  socket.onopen = () => {
    why = ''
    if (socket.protocol !== REFUSES) opened()
  }
  socket.onmessage = ({ data }) => heard(data)
  socket.onclose = ({ code, reason }) => lost(code, reason || why)
  socket.onerror = () => {} // the close follows
  return {
    send: (text) => socket.send(text),
    full: () => socket.bufferedAmount > MIB,
    close() {
      socket.onmessage = socket.onclose = null
      // Browsers log an error if a socket is closed before it opens. A dead socket reports its end minutes later.
      socket.onopen = () => socket.close()
      if (socket.readyState === 1) socket.close()
    },
  }
}

function overPort(port, opened, heard, lost) {
  const take = ({ data }) => {
    if (typeof data !== 'string' || data[0] !== '\0') heard(data)
    else if (data.startsWith('\0bye')) lost(+data.slice(5, 9), data.slice(10))
  }
  const over = ({ code = 1006, reason = 'the port is closed' }) => lost(code, reason)
  const listening = new AbortController()
  port.addEventListener('message', take, listening)
  port.addEventListener('close', over, listening)
  port.start?.()
  queueMicrotask(opened)
  return {
    port,
    send: (text) => port.postMessage(text),
    full: () => false,
    close() {
      listening.abort()
      if (!port.polybus) port.postMessage('\0bye 1000') // the ports of polybus-frames.js send it themselves
      port.close?.()
    },
  }
}

// -- the bus ----------------------------------------------------------------------------------------------------------------

export const connect = (target, options) => new Bus(target, options)

export class Bus extends EventTarget {
  #target
  #options
  #state = 'connecting'
  #error // why the bus was closed
  #why // the link was lost; empty while it is up
  #link
  #up = false // the link is open
  #attempt // identifies the current attempt, so that events of earlier ones are ignored
  #timer // for the attempt, the pause before the next one, or the token
  #watch // timer for silence
  #heard = 0
  #opened = 0
  #woke = -Infinity
  #failures = 0
  #broken = 0
  #refused = false
  #renews // the token is a function, which returns a new one
  #resume // token that continues the session on another server of the cluster
  #most = MIB
  #own // pauses between attempts
  #retry // the server's, or our own
  #last = 0
  #calls = new Map()
  #queue = new Set()
  #flusher
  #due = Infinity
  #sweeper
  #topics = new Map()
  #wild = new Set()
  #changed = false
  #handlers = new Map([[HELLO, () => ({ v: 1 })]])
  #running = new Map()
  #listening = new AbortController()
  #ready = promised()

  constructor(target, options = {}) {
    super()
    this.#target = target
    this.#options = options
    this.#renews = typeof options.token === 'function'
    this.#retry = this.#own = { initial: 250, maximum: 5000, ...options.backoff }
    const { document } = globalThis
    const wake = ({ type }) => (type[0] === 'v' && document.hidden) || this.#wake()
    const hear = (place, hearer, ...types) => types.forEach((type) => place?.addEventListener?.(type, hearer, this.#listening))
    hear(globalThis, wake, 'online', 'pageshow', 'focus')
    hear(document, wake, 'resume', 'visibilitychange')
    // Browsers do not keep a page with an open socket for the back button, and a page that they keep receives nothing.
    hear(globalThis, () => this.#link?.port || this.#lose(1001, 'the page was left', undefined, Infinity), 'pagehide')
    queueMicrotask(() => this.#state === 'connecting' && this.#dial())
  }

  get state() {
    return this.#state
  }

  get ready() {
    return this.#ready.promise
  }

  get pending() {
    return [...this.#calls.values(), ...this.#queue].filter((call) => call.subject !== HELLO).length
  }

  // -- verbs

  request(subject, body, options) {
    return this.#ask('request', subject, body, options)
  }

  notify(subject, body, options) {
    return this.#ask('notify', subject, body, options)
  }

  publish(subject, body, options) {
    return this.#ask('publish', subject, body, options)
  }

  async *stream(subject, body, options) {
    const items = []
    let over = false
    let error
    let wake
    const end = (why) => {
      over = true
      error = why
      wake?.()
    }
    const item = (one) => {
      if (items.push(one) > 2 * CREDIT) this.#abandon(call, new BusError('too many items'))
      wake?.()
    }
    const call = this.#begin('open', subject, body, options, end, end, item)
    let read = 0
    try {
      while (true) {
        if (items.length) {
          yield items.shift()
          if (++read % (CREDIT / 2) === 0 && !over) this.#write(quote({ credit: call.id, n: CREDIT / 2 }))
        } else if (over) {
          if (error) throw error
          return
        } else await new Promise((resolve) => (wake = resolve))
      }
    } finally {
      if (!over) this.#abandon(call)
    }
  }

  subscribe(pattern, hear, { signal } = {}) {
    let topic = this.#topics.get(pattern)
    if (!topic) {
      topic = { pattern, fits: fitting(pattern), hearers: new Set(), ready: promised() }
      this.#topics.set(pattern, topic)
      if (topic.fits) this.#wild.add(topic)
    }
    const close = () => {
      signal?.removeEventListener('abort', close)
      if (topic.hearers.delete(hearer) && !topic.hearers.size) this.#change()
    }
    const hearer = { hear, close }
    topic.hearers.add(hearer)
    signal?.addEventListener('abort', close)
    if (signal?.aborted) close()
    if (this.#error) this.#forget(topic, this.#error)
    this.#change()
    return {
      pattern,
      close,
      [Symbol.dispose ?? 'dispose']: close,
      get ready() {
        topic.awaited = true
        return topic.ready.promise
      },
    }
  }

  handle(subject, answer) {
    if (this.#handlers.has(subject)) throw new BusError(`${subject} already has a handler`)
    this.#handlers.set(subject, answer)
    return () => this.#handlers.get(subject) === answer && this.#handlers.delete(subject)
  }

  close(reason = 'closed') {
    this.#end(disconnected(reason, false), 1000, reason)
  }

  // -- calls: everything that is sent and settled

  #ask(verb, subject, body, options) {
    return new Promise((resolve, reject) => this.#begin(verb, subject, body, options, resolve, reject))
  }

  #begin(verb, subject, body, options = {}, resolve, reject, item) {
    const { timeout = this.#options.timeout ?? TIMEOUT, signal, headers } = options
    if (typeof subject !== 'string' || !subject) throw new TypeError(`subject must be a non-empty string, not ${subject}`)
    if (!(timeout > 0)) throw new RangeError(`timeout=${timeout} must be above 0 ms`)
    signal?.throwIfAborted()
    if (this.#error) throw this.#error
    const said = member(body) + (headers ? `,"headers":${encode(headers)}` : '')
    const quoted = encode(subject)
    this.#check(quoted + said, subject)
    const waits = this.#queue.size || !this.#isFree()
    if (waits) {
      const most = this.#options.queue ?? 256
      let size = said.length
      for (const waiting of this.#queue) size += waiting.said.length
      if (this.#queue.size >= most || (this.#queue.size && size > MIB)) throw new QueueFull(`the queue is full: ${most} messages, or 1 MiB`)
    }
    const call = { verb, subject, quoted, said, id: `${++this.#last}`, deadline: now() + timeout, signal, resolve, reject, item }
    signal?.addEventListener('abort', (call.abort = () => this.#abandon(call, signal.reason)))
    this.#arm(call.deadline)
    if (waits) {
      this.#queue.add(call)
      this.#flush()
    } else this.#leave(call, timeout)
    return call
  }

  // The rest of a frame takes at most 80 characters. A frame above the limit would end the link with all its calls.
  #check(text, subject) {
    const most = this.#most - 80
    if (text.length * 3 <= most) return
    const size = new TextEncoder().encode(text).length
    if (size > most) throw new TooLarge(`${size} bytes: the limit is ${most}`, { subject })
  }

  #isFree() {
    return this.#up && !this.#link.full()
  }

  #flush() {
    for (const call of this.#queue) {
      if (!this.#isFree()) break
      this.#queue.delete(call)
      this.#leave(call, Math.max(call.deadline - now(), 0))
    }
    clearTimeout(this.#flusher)
    if (this.#queue.size && this.#up) this.#flusher = setTimeout(() => this.#flush(), 20)
  }

  // Send a call. From here on the server may have received it.
  #leave(call, left) {
    if (this.#changed) this.#tell() // so that the caller receives the publications of its request
    const { verb, id, quoted, said } = call
    if (verb === 'publish') this.#write(`{"publish":${quoted}${said}}`)
    else if (verb === 'open') this.#write(`{"open":"${id}","subject":${quoted},"mode":"stream","n":${CREDIT}${said}}`)
    else this.#write(`{"request":${quoted},"id":"${id}"${said}${left < Infinity ? `,"ttl":${Math.ceil(left)}` : ''}}`)
    if (verb === 'publish' || verb === 'notify') return this.#settle(call, call.resolve)
    if (verb === 'open') call.deadline = Infinity
    this.#calls.set(id, call)
  }

  #write(text) {
    if (this.#up) this.#link.send(text)
  }

  #settle(call, how, value) {
    this.#calls.delete(call.id)
    this.#queue.delete(call)
    call.signal?.removeEventListener('abort', call.abort)
    how(value)
  }

  // Cancel a call, because its caller no longer waits.
  #abandon(call, error) {
    if (this.#calls.has(call.id)) this.#write(quote(call.item ? { end: call.id, code: 1 } : { cancel: call.id }))
    this.#settle(call, call.reject, error)
  }

  // One timer serves all deadlines. Only an earlier deadline resets it.
  #arm(deadline) {
    if (deadline >= this.#due) return
    this.#due = deadline
    clearTimeout(this.#sweeper)
    this.#sweeper = later(() => this.#sweep(), deadline - now())
  }

  #sweep() {
    this.#due = Infinity
    const at = now()
    let next = Infinity
    for (const call of [...this.#calls.values(), ...this.#queue]) {
      if (call.deadline <= at) this.#settle(call, call.reject, expired(call.subject, 'local', this.#why))
      else next = Math.min(next, call.deadline)
    }
    this.#arm(next)
  }

  // -- subscriptions: sent before everything else

  #change() {
    // A subscription that is closed and reopened in one turn of the event loop causes no traffic.
    if (!this.#changed) queueMicrotask(() => this.#tell())
    this.#changed = true
  }

  #tell(facts) {
    this.#changed = false
    if (!this.#up) return
    const told = []
    for (const [pattern, topic] of this.#topics) {
      if (!topic.hearers.size) {
        if (topic.told) this.#write(quote({ unsubscribe: pattern }))
        this.#forget(topic, disconnected('unsubscribed', false))
      } else if (!topic.told) {
        topic.told = true
        told.push(topic)
        this.#write(quote({ subscribe: pattern }))
      }
    }
    while (told.length > CONFIRMED) this.#hello({}, told.splice(0, CONFIRMED))
    if (told.length || facts) this.#hello(facts, told)
  }

  #forget(topic, error) {
    topic.told = false
    this.#topics.delete(topic.pattern)
    this.#wild.delete(topic)
    topic.hearers.forEach(({ close }) => close())
    topic.ready.reject(error)
  }

  // -- hellos: they ask for refused subscriptions, and are barriers and pings

  #hello(facts, topics = []) {
    const confirm = topics.length ? topics.map(({ pattern }) => pattern) : undefined
    const body = { v: 1, asks: 'page', limits: true, confirm, ...facts }
    this.#leave({
      subject: HELLO,
      quoted: quote(HELLO),
      said: `,"body":${quote(body)}`,
      id: `${++this.#last}`,
      deadline: Infinity,
      resolve: (answer) => this.#met(answer ?? {}, topics),
      reject: (error) => error instanceof Disconnected || this.#met({}, topics), // not a polybus server
    }, Infinity)
  }

  #met({ resume_token, limits, retry, expires_in, refused = [] }, topics) {
    this.#refused = false
    if (this.#renews && !this.#timer && isTime(expires_in, 0, 2 ** 53)) this.#timer = later(() => this.#renew(), Math.max(expires_in * 0.8, 1000))
    this.#resume = resume_token
    this.#most = limits?.message ?? MIB
    this.#retry = isTime(retry?.initial, 1, 864e5) && isTime(retry.maximum, 1, 864e5) ? retry : this.#own
    for (const topic of topics) {
      if (!topic.told) continue // closed in between
      if (refused.includes(topic.pattern)) {
        const error = new Forbidden('the server refuses it', { subject: topic.pattern })
        this.#forget(topic, error)
        if (!topic.awaited) this.#fire('error', { error })
      }
      topic.ready.resolve()
      topic.awaited = false // a later refusal is an event, unless somebody awaits it again
    }
  }

  // Send a new token over the open link, so that requests and streams continue.
  async #renew() {
    const attempt = this.#attempt
    this.#timer = 0 // the answer says when to renew again
    const token = await this.#token().catch(report) // without a token the answer still says when to try again
    if (attempt === this.#attempt) this.#hello({ token })
  }

  async #token() {
    const { token } = this.#options
    return this.#renews ? token({ refused: this.#refused, failures: this.#failures }) : token
  }

  // -- frames

  #receive(data) {
    this.#heard = now()
    try {
      this.#take(JSON.parse(data))
    } catch (error) {
      report(error) // a malformed frame does not end the link
    }
  }

  #take(frame) {
    if (frame.publish !== undefined) return this.#published(frame)
    const id = frame.success ?? frame.item ?? frame.fail ?? frame.end
    const call = this.#calls.get(id)
    if (call) {
      if ('item' in frame) call.item?.('data' in frame ? Uint8Array.from(atob(frame.data), (one) => one.charCodeAt(0)) : (frame.body ?? null))
      else if ('success' in frame) this.#settle(call, call.resolve, frame.body ?? null)
      else if ('fail' in frame || frame.code) this.#settle(call, call.reject, errorOf(frame, call.subject))
      else this.#settle(call, call.resolve)
    } else if (frame.request !== undefined) this.#answer(frame, this.#link)
    else if (frame.cancel !== undefined) this.#running.get(frame.cancel)?.abort()
    else if (frame.open !== undefined) this.#write(quote({ end: frame.open, code: 12 }))
  }

  #published({ publish: subject, body = null, headers = {} }) {
    const exact = this.#topics.get(subject)
    const about = { subject, headers }
    if (exact && !exact.fits) hearAll(exact, body, about)
    for (const topic of this.#wild) if (topic.fits.test(subject)) hearAll(topic, body, about)
  }

  async #answer({ request, id, body = null, headers = {}, ttl }, link) {
    const handler = this.#handlers.get(request)
    const answer = (text) => link === this.#link && this.#write(text)
    if (!handler || id === undefined) return answer(quote({ fail: id ?? request, body: 'NotFound', code: 12 }))
    const running = new AbortController()
    const { signal } = running
    const timer = ttl !== undefined && later(() => running.abort(expired(request, 'local')), ttl)
    this.#running.set(id, running)
    try {
      const frame = `{"success":${quote(id)}${member(await handler(body, { subject: request, headers, signal }))}}`
      this.#check(frame, request)
      if (!signal.aborted) answer(frame)
    } catch (error) {
      if (signal.aborted) return
      const known = error instanceof RequestError
      if (!known) report(error)
      const { code, text, reason, detail } = known ? error : { code: 13, text: 'the page could not answer' }
      answer(quote({ fail: id, body: code === 12 ? 'NotFound' : text, code, text, reason, detail }))
    } finally {
      clearTimeout(timer)
      if (this.#running.get(id) === running) this.#running.delete(id)
    }
  }

  // -- connecting and disconnecting

  async #dial() {
    const attempt = (this.#attempt = {})
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => this.#lose(1006, 'no answer in time'), OPENING)
    this.#become('connecting', { failures: this.#failures })
    const { protocol = 'ubre', WebSocket: Socket = globalThis.WebSocket } = this.#options
    const on = [() => this.#open(), (data) => this.#receive(data), (code, reason) => this.#lose(code, reason)]
    let target
    let shown
    try {
      target = typeof this.#target === 'function' ? await this.#target() : this.#target
      shown = await this.#token()
    } catch (error) {
      return attempt === this.#attempt && this.#lose(1006, error?.message, error)
    }
    if (attempt !== this.#attempt) return
    try {
      if (target.postMessage) this.#link = overPort(target, ...on)
      else {
        if (!Socket) throw new TypeError('no WebSocket: connect(url, { WebSocket })')
        const url = new URL(`${target}`.replace(/^ubre\+/, ''), globalThis.location?.href)
        url.protocol = url.protocol.replace('http', 'ws')
        this.#link = overSocket(new Socket(url.href, [protocol, REFUSES, ...(shown ? [`polybus.token.${shown}`] : [])]), ...on)
      }
    } catch (error) {
      this.#end(new BusError(`cannot connect to ${target}: ${error.message}`, { cause: error }), 1006, error.message)
    }
  }

  #open() {
    if (!this.#link) return // lost in this turn
    clearTimeout(this.#timer)
    this.#timer = 0
    this.#up = true
    this.#why = ''
    this.#heard = this.#opened = now()
    const resumes = this.#resume
    this.#changed = false // the hello with the token comes first
    if (resumes) this.#hello({ resume_token: resumes })
    this.#tell(resumes ? { resumed: true } : {})
    this.#look()
    this.#flush()
    this.#ready.resolve()
    this.#become('open')
  }

  // Check how long the server has been silent, or whether it has answered the ping of the time `asked`.
  #look(asked) {
    clearTimeout(this.#watch)
    const look = () => {
      const at = now()
      if (asked ? this.#heard >= asked : at - this.#heard < SILENCE) this.#look()
      // A late timer proves nothing, because the machine slept.
      else if (!asked || at - asked > 3 * PATIENCE) this.#probe()
      else this.#lose(1006, 'no sign of life')
    }
    this.#watch = setTimeout(look, asked ? PATIENCE : SILENCE - now() + this.#heard)
  }

  #probe() {
    this.#hello()
    this.#look(now())
  }

  #wake() {
    this.#woke = now()
    if (this.#state === 'waiting') {
      this.#failures = 0
      this.#dial()
    } else if (this.#up) this.#probe()
  }

  #drop(reason, sent) {
    this.#why = reason
    this.#up = false
    this.#link?.close()
    this.#attempt = this.#link = undefined
    clearTimeout(this.#timer)
    clearTimeout(this.#watch)
    this.#calls.forEach((call) => this.#settle(call, call.reject, disconnected(reason, sent)))
    this.#running.forEach((running) => running.abort(disconnected(reason, true)))
    this.#topics.forEach((topic) => (topic.told = false))
  }

  #lose(code, reason, error, pause) {
    const { initial, maximum } = this.#retry
    const at = now()
    const port = this.#link?.port
    if (this.#up && at - this.#opened > maximum) this.#failures = this.#broken = 0
    this.#drop(reason, code !== 1001 || reason !== NOT_READ)
    let end
    if (code === 4403) end = new Forbidden(reason)
    else if (code === 4401 && (this.#refused || !this.#renews)) end = new Unauthorized(reason)
    else if (port && port === this.#target) end = disconnected(reason, false)
    // After a reconnect a protocol violation would be repeated.
    else if (/100[23789]/.test(code) && ++this.#broken === 3) end = new BusError(`${code}: ${reason}`)
    if (end || this.#error) return this.#end(end, code, reason)
    let delay = pause ?? Math.random() * Math.min(maximum, initial * 2 ** this.#failures++)
    if (code === 4401) {
      this.#refused = true
      delay = 0
    } else if (at - this.#woke < AWAKE && !pause) {
      this.#woke = -Infinity
      this.#failures = delay = 0
    }
    if (delay < Infinity) this.#timer = later(() => this.#dial(), delay)
    this.#become('waiting', { code, reason, delay, failures: this.#failures, error })
  }

  #end(error, code, reason) {
    if (this.#error) return
    this.#error = error
    this.#drop(reason, true)
    this.#listening.abort()
    clearTimeout(this.#sweeper)
    this.#queue.forEach((call) => this.#settle(call, call.reject, error))
    this.#topics.forEach((topic) => this.#forget(topic, error))
    this.#ready.reject(error)
    this.#become('closed', { code, reason, error })
  }

  #become(state, facts) {
    this.#state = state
    this.#fire('state', { state, ...facts })
  }

  #fire(type, facts) {
    this.dispatchEvent(Object.assign(new Event(type), facts))
  }
}

function hearAll(topic, body, about) {
  for (const { hear } of [...topic.hearers]) {
    try {
      hear(body, about)
    } catch (error) {
      report(error)
    }
  }
}

// Make a promise that may be rejected without a handler.
function promised() {
  const made = {}
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }))
  made.promise.catch(() => {})
  return made
}
