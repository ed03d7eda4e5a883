// A world for one bus: its clock, its network and its page do what the test says, and nothing by themselves.
import * as polybus from '../../../sdk/polybus/javascript/polybus.js'

const real = { setTimeout, clearTimeout, performance, random: Math.random, reportError: globalThis.reportError }

export class FakeSocket {
  static made = []
  readyState = 0
  bufferedAmount = 0
  protocol = ''
  frames = []
  closed = false

  constructor(url, protocols) {
    Object.assign(this, { url, protocols })
    FakeSocket.made.push(this)
  }

  send(text) {
    this.frames.push(JSON.parse(text))
  }

  close() {
    this.closed = true
    this.readyState = 2
  }

  // -- what the server does

  open(protocol = 'ubre') {
    this.protocol = protocol
    this.readyState = 1
    this.onopen?.()
  }

  says(frame) {
    this.onmessage?.({ data: typeof frame === 'string' ? frame : JSON.stringify(frame) })
  }

  // The answer to each hello that has none.
  greets(facts = {}) {
    for (const frame of this.take((one) => one.request === '_polybus.hello')) this.says({ success: frame.id, body: { v: 1, ...facts } })
  }

  drops(code = 1006, reason = '') {
    this.readyState = 3
    this.onclose?.({ code, reason })
  }

  // Frames that fit, which are then forgotten.
  take(fits = () => true) {
    const taken = this.frames.filter(fits)
    this.frames = this.frames.filter((frame) => !taken.includes(frame))
    return taken
  }

  // Of what it was sent, without hellos.
  get said() {
    return this.frames.filter((frame) => frame.request !== '_polybus.hello')
  }
}

export class World {
  at = 1000
  timers = new Map()
  states = []
  errors = []
  reported = []
  #last = 0

  constructor(test, { page = true } = {}) {
    FakeSocket.made = []
    this.window = new EventTarget()
    this.document = Object.assign(new EventTarget(), { hidden: false })
    Object.assign(globalThis, {
      setTimeout: (act, delay = 0) => (this.timers.set(++this.#last, { act, due: this.at + Math.max(delay, 1), delay }), this.#last),
      clearTimeout: (id) => this.timers.delete(id),
      performance: { now: () => this.at },
      reportError: (error) => void this.reported.push(error),
    })
    Math.random = () => 1
    if (page) {
      globalThis.document = this.document
      globalThis.location = { href: 'https://shop.example/page#there' }
      globalThis.addEventListener = (...given) => this.window.addEventListener(...given)
    }
    test.after(() => {
      this.bus?.close()
      Object.assign(globalThis, real)
      Math.random = real.random
      for (const name of ['document', 'location', 'addEventListener']) delete globalThis[name]
    })
  }

  connect(target = '/bus', options = {}) {
    const bus = (this.bus = polybus.connect(target, { WebSocket: FakeSocket, ...options }))
    bus.addEventListener('state', ({ state, type, ...facts }) => this.states.push({ state, ...facts }))
    bus.addEventListener('error', ({ error }) => this.errors.push(error))
    return bus
  }

  // A bus whose link is open, and greeted.
  async opened(options, facts) {
    const bus = this.connect('/bus', options)
    await this.turn()
    this.socket.open()
    this.socket.greets(facts)
    this.socket.take()
    return bus
  }

  get socket() {
    return FakeSocket.made.at(-1)
  }

  get knocks() {
    return FakeSocket.made.length
  }

  // All promises that can go on have done so.
  turn() {
    return new Promise(setImmediate)
  }

  // Time goes by, from one timer to the next.
  async pass(milliseconds) {
    const end = this.at + milliseconds
    while (true) {
      const [id, next] = [...this.timers].sort(([, one], [, other]) => one.due - other.due)[0] ?? []
      if (!next || next.due > end) break
      this.timers.delete(id)
      this.at = Math.max(this.at, next.due)
      next.act()
      await this.turn()
    }
    this.at = end
    await this.turn()
  }

  // The machine slept: time has gone by, and no timer ran.
  sleep(milliseconds) {
    this.at += milliseconds
  }

  async happens(type, { on = this.window, hidden = this.document.hidden } = {}) {
    this.document.hidden = hidden
    on.dispatchEvent(new Event(type))
    await this.turn()
  }
}

// What a promise has come to by now: 'pending', a value, or the error itself.
export async function outcome(promise) {
  const waiting = Symbol('waiting')
  const now = new Promise((resolve) => setImmediate(() => resolve(waiting)))
  const found = await Promise.race([promise, now]).catch((error) => error)
  return found === waiting ? 'pending' : found
}

// A promise that may be refused before the test looks at it.
export function kept(promise) {
  promise.catch(() => {})
  return promise
}

// How many listeners a signal has, and the signal.
export function watched() {
  const controller = new AbortController()
  const { signal } = controller
  let count = 0
  const { addEventListener, removeEventListener } = EventTarget.prototype
  signal.addEventListener = (...given) => (count++, addEventListener.apply(signal, given))
  signal.removeEventListener = (type, listener) => (listener && count--, removeEventListener.call(signal, type, listener))
  return { controller, signal, listeners: () => count }
}
