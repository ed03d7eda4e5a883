// The rules of polybus.js, each with a socket and a clock that do what the test says.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import * as polybus from '../../../sdk/polybus/javascript/polybus.js'
import { FakeSocket, kept, outcome, watched, World } from './world.mjs'

const sentOf = (found) => [found.name, found.sent]

// -- connecting

test('a relative address is that of the page, and the token a sub-protocol', async (t) => {
  const world = new World(t)
  world.connect('/bus', { token: 'abc' })
  await world.turn()
  assert.equal(world.socket.url, 'wss://shop.example/bus')
  assert.deepEqual(world.socket.protocols, ['ubre', 'polybus.closes', 'polybus.token.abc'])
})

test('a socket that still connects is closed when it is open', async (t) => {
  const world = new World(t)
  world.connect()
  await world.turn()
  world.bus.close()
  assert.equal(world.socket.closed, false)
  world.socket.open()
  assert.equal(world.socket.closed, true)
})

test('ready is kept when the link is open, and refused when the bus was closed before', async (t) => {
  const world = new World(t)
  const bus = world.connect()
  assert.equal(await outcome(bus.ready), 'pending')
  world.socket.open()
  assert.equal(await outcome(bus.ready), undefined)
  const other = world.connect()
  other.close()
  assert.deepEqual(sentOf(await outcome(other.ready)), ['Disconnected', false])
})

test('a page whose link never opens learns what to check: in its state and in the errors of its requests', async (t) => {
  const world = new World(t)
  const bus = world.connect('ws://shop.example:81/buss')
  const asked = kept(bus.request('order.get', null, { timeout: 2000 }))
  await world.turn()
  world.socket.drops()
  const text = "ws://shop.example:81/buss never opened: port, path, Origin? see the server log"
  assert.deepEqual([world.states.at(-1).state, world.states.at(-1).reason], ['waiting', text])
  await world.pass(2000)
  const error = await outcome(asked)
  assert.deepEqual([error.name, error.text, error.message], ['DeadlineExceeded', text, `order.get: ${text}`])
  world.socket.open()
  world.socket.greets()
  const late = kept(bus.request('order.get', null, { timeout: 2000 }))
  await world.pass(2000)
  assert.equal((await outcome(late)).text, 'no answer in time')
  world.socket.drops()
  assert.equal(world.states.at(-1).reason, '')
})

test('an attempt that does not open within ten seconds is given up', async (t) => {
  const world = new World(t)
  world.connect()
  await world.turn()
  await world.pass(9999)
  assert.equal(world.knocks, 1)
  await world.pass(500)
  assert.equal(world.knocks, 2)
})

test('pauses double up to the maximum, and begin anew after a link that lasted longer', async (t) => {
  const world = new World(t)
  world.connect()
  await world.turn()
  for (let attempt = 0; attempt < 7; attempt++) {
    world.socket.drops()
    await world.pass(5000)
  }
  const pauses = () => world.states.filter(({ state }) => state === 'waiting').map(({ delay }) => delay)
  assert.deepEqual(pauses(), [250, 500, 1000, 2000, 4000, 5000, 5000])
  world.socket.open()
  await world.pass(4000)
  world.socket.drops()
  assert.equal(pauses().at(-1), 5000)
  await world.pass(5000)
  world.socket.open()
  await world.pass(6000)
  world.socket.drops()
  assert.equal(pauses().at(-1), 250)
})

test('the whole of a pause is chance, and the server says how long it may be', async (t) => {
  const world = new World(t)
  await world.opened({}, { retry: { initial: 1000, maximum: 20000 } })
  Math.random = () => 0.5
  world.socket.drops()
  assert.equal(world.states.at(-1).delay, 500)
})

test('the pauses of a server are forgotten when another server, or none of polybus, is at its address', async (t) => {
  for (const next of [(socket) => socket.greets(), (socket) => socket.says({ fail: socket.take()[0].id, body: 'NotFound' })]) {
    const world = new World(t)
    await world.opened({}, { retry: { initial: 864e5, maximum: 864e5 } })
    world.socket.drops()
    await world.happens('online')
    await world.pass(6000)
    world.socket.drops() // it said nothing, so the pauses still apply
    assert.equal(world.states.at(-1).delay, 864e5)
    await world.happens('online')
    await world.pass(6000)
    world.socket.open()
    next(world.socket)
    world.socket.drops()
    assert.equal(world.states.at(-1).delay, 250)
    world.bus.close()
  }
})

test('what are no pauses is not heeded', async (t) => {
  const pairs = [[9], ['x', 9], [9, -1], [0.9, 9], [9, '9'], [[9], 9], [9, 864e5 + 1], [1e999, 1e999], [true, 9], [null, null]]
  for (const retry of [{}, null, ...pairs.map(([initial, maximum]) => ({ initial, maximum }))]) {
    const world = new World(t)
    await world.opened({}, { retry })
    world.socket.drops()
    assert.equal(world.states.at(-1).delay, 250)
    world.bus.close()
  }
  const world = new World(t)
  await world.opened({ backoff: { initial: 1e12, maximum: 1e12 } })
  world.socket.drops()
  await world.pass(2 ** 31 - 2)
  assert.equal(world.knocks, 1)
})

test('waking up ends a pause at once, and going out of sight does not', async (t) => {
  for (const [type, place] of [['online'], ['pageshow'], ['focus'], ['resume', 'document'], ['visibilitychange', 'document']]) {
    const world = new World(t)
    world.connect()
    await world.turn()
    world.socket.drops()
    await world.happens('visibilitychange', { on: world.document, hidden: true }) // it went out of sight
    assert.equal(world.knocks, 1)
    await world.happens(type, { on: world[place ?? 'window'], hidden: false })
    assert.equal(world.knocks, 2, type)
    world.bus.close()
  }
})

test('a loss that is told just after a wake-up begins with no pause, once', async (t) => {
  const world = new World(t)
  await world.opened()
  await world.happens('resume', { on: world.document })
  world.socket.drops()
  await world.pass(1)
  assert.equal(world.knocks, 2)
  world.socket.drops()
  assert.equal(world.states.at(-1).delay, 250)
})

test('a closed bus stays closed, and nothing of it is left', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  bus.close('enough')
  assert.deepEqual([bus.state, world.states.at(-1).reason, world.socket.closed], ['closed', 'enough', true])
  await world.happens('online')
  await world.pass(60000)
  assert.deepEqual([world.knocks, world.timers.size], [1, 0])
  assert.deepEqual(sentOf(await outcome(bus.request('late'))), ['Disconnected', false])
  assert.equal((await outcome(bus.subscribe('late', () => {}).ready)).name, 'Disconnected')
})

test('without a WebSocket the bus says which option gives it one', async (t) => {
  const world = new World(t)
  const bus = world.connect('/bus', { WebSocket: undefined })
  const had = globalThis.WebSocket
  globalThis.WebSocket = undefined
  await world.turn()
  globalThis.WebSocket = had
  assert.match((await outcome(bus.ready)).message, /connect\(url, \{ WebSocket \}\)/)
})

// -- who we are

test('a fixed token that is refused is shown once', async (t) => {
  const world = new World(t)
  const bus = world.connect('/bus', { token: 'old' })
  await world.turn()
  const waiting = kept(bus.request('any'))
  world.socket.open('polybus.closes')
  assert.equal(bus.state, 'connecting')
  world.socket.drops(4401, 'not known here')
  await world.pass(60000)
  assert.equal(world.knocks, 1)
  for (const told of [bus.ready, waiting, bus.request('more')]) {
    const error = await outcome(told)
    assert.deepEqual([error.name, error.text], ['Unauthorized', 'not known here'])
  }
})

test('a token that expires is replaced as often as it does', async (t) => {
  const world = new World(t)
  const asked = []
  world.connect('/bus', { token: async ({ refused }) => (asked.push(refused), 'fresh') })
  for (let round = 0; round < 3; round++) {
    await world.pass(1)
    world.socket.open()
    world.socket.greets()
    world.socket.drops(4401, 'expired')
  }
  await world.pass(1)
  assert.deepEqual(asked, [false, true, true, true])
})

test('a function that throws costs an attempt, and the error is told', async (t) => {
  const world = new World(t)
  const mistake = new Error('no network')
  world.connect('/bus', { token: () => Promise.reject(mistake) })
  await world.turn()
  assert.deepEqual([world.states.at(-1).state, world.states.at(-1).error], ['waiting', mistake])
})

test('a page that subscribes all the time renews its token in time, too', async (t) => {
  const world = new World(t)
  let calls = 0
  const bus = await world.opened({ token: () => `t${++calls}` }, { expires_in: 5000 })
  for (let past = 0; past < 4000; past += 500) {
    bus.subscribe(`news.${past}`, () => {})
    await world.pass(500)
    for (const { id } of world.socket.take(({ request, body }) => request === '_polybus.hello' && !body.token))
      world.socket.says({ success: id, body: { v: 1, expires_in: 4500 - past } })
  }
  assert.equal(calls, 2)
})

test('a token that cannot be had now is asked for again, a fixed one is not shown again, and a late one is nobody\'s', async (t) => {
  const world = new World(t)
  let answer = () => Promise.reject(new Error('no network'))
  let calls = 0
  const hellos = () => world.socket.take(({ request }) => request === '_polybus.hello').map(({ id, body }) => [id, body.token])
  await world.opened({ token: () => (calls++ ? answer() : 'first') }, { expires_in: 5000 })
  await world.pass(4000)
  const [[id, none]] = hellos()
  assert.deepEqual([none, world.reported.length], [undefined, 1])
  world.socket.says({ success: id, body: { v: 1, expires_in: 0 } })
  let tell
  answer = () => new Promise((resolve) => (tell = resolve))
  await world.pass(999)
  assert.equal(calls, 2)
  await world.pass(1)
  assert.equal(calls, 3)
  world.socket.drops(4401, 'expired')
  await world.pass(1)
  tell('late')
  await world.turn()
  assert.deepEqual(FakeSocket.made.map(({ frames }) => frames.length), [0, 0])
  world.bus.close()
  await world.opened({ token: 'fixed' }, { expires_in: 5000 })
  await world.pass(20000)
  assert.deepEqual(hellos(), [])
})

test('what is no time until a token ends is not heeded', async (t) => {
  for (const said of [null, [3], '5', true, -1, 1e300]) {
    const world = new World(t)
    let calls = 0
    await world.opened({ token: () => `t${++calls}` }, { expires_in: said })
    await world.pass(20000)
    assert.equal(calls, 1, `${said}`)
    world.bus.close()
  }
})

test('a broken rule of the wire is not broken a fourth time', async (t) => {
  const world = new World(t)
  world.connect()
  for (let round = 0; round < 5; round++) {
    await world.pass(5000)
    world.socket.open()
    world.socket.drops(1009, 'too large')
  }
  assert.deepEqual([world.knocks, world.bus.state, (await outcome(world.bus.request('x'))).message], [3, 'closed', '1009: too large'])
})

// -- requests

test('what is asked before the link is open waits for it, with the time that is left', async (t) => {
  const world = new World(t)
  const bus = world.connect()
  const reply = bus.request('add', [1, 2], { timeout: 3000, headers: { who: 'me' } })
  await world.pass(1000)
  world.socket.open()
  const [{ id, ...frame }] = world.socket.said
  assert.deepEqual(frame, { request: 'add', body: [1, 2], headers: { who: 'me' }, ttl: 2000 })
  world.socket.says({ success: id, body: 3 })
  assert.equal(await outcome(reply), 3)
  assert.equal(bus.pending, 0)
})

test('a deadline is kept before the link is open and behind it', async (t) => {
  const world = new World(t)
  const bus = world.connect()
  await world.turn()
  const early = bus.request('a', null, { timeout: 500 })
  await world.pass(499)
  assert.equal(await outcome(early), 'pending')
  await world.pass(1)
  const told = await outcome(early)
  assert.deepEqual([told.name, told.where, told.subject], ['DeadlineExceeded', 'local', 'a'])
  world.socket.open()
  assert.deepEqual(world.socket.said, [])
  const later = [2000, 1000, Infinity].map((timeout) => kept(bus.request('b', null, { timeout })))
  await world.pass(1000)
  assert.deepEqual((await Promise.all(later.map(outcome))).map((one) => one.name ?? one), ['pending', 'DeadlineExceeded', 'pending'])
  assert.equal('ttl' in world.socket.said.at(-1), false)
})

test('no body is null', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const reply = bus.request('empty')
  assert.deepEqual(Object.keys(world.socket.said[0]), ['request', 'id', 'ttl'])
  world.socket.says({ success: world.socket.said[0].id })
  assert.equal(await outcome(reply), null)
})

test('notify and publish are done when they have left', async (t) => {
  const world = new World(t)
  const bus = world.connect()
  await world.turn()
  const done = [bus.notify('seen', 7), bus.publish('news', 'all')]
  assert.deepEqual(await Promise.all(done.map(outcome)), ['pending', 'pending'])
  world.socket.open()
  assert.deepEqual(await Promise.all(done.map(outcome)), [undefined, undefined])
  assert.deepEqual([world.socket.said[0].request, world.socket.said[1]], ['seen', { publish: 'news', body: 'all' }])
  assert.equal(bus.pending, 0)
})

test('a server that drains has not read what it did not answer', async (t) => {
  for (const [reason, sent] of [['the bus is leaving', false], ['the bus is leaving, and what still ran was cut', true]]) {
    const world = new World(t)
    const bus = await world.opened()
    const reply = bus.request('work')
    world.socket.drops(1001, reason)
    assert.deepEqual(sentOf(await outcome(reply)), ['Disconnected', sent])
    bus.close()
  }
})

test('a signal takes back what waits, what runs, and what never began', async (t) => {
  const world = new World(t)
  const bus = world.connect()
  await world.turn()
  const { controller, signal, listeners } = watched()
  const mine = new Error('changed my mind')
  const waits = bus.request('a', null, { signal })
  controller.abort(mine)
  assert.deepEqual([await outcome(waits), bus.pending], [mine, 0])
  assert.equal(await outcome(bus.request('b', null, { signal })), mine)
  world.socket.open()
  assert.deepEqual(world.socket.said, [])
  const other = watched()
  const runs = bus.request('c', null, { signal: other.signal })
  other.controller.abort(mine)
  assert.equal(await outcome(runs), mine)
  assert.deepEqual(world.socket.said[1], { cancel: world.socket.said[0].id })
  assert.deepEqual([listeners(), other.listeners(), bus.pending], [0, 0, 0])
})

test('no listener is left on a signal', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const { signal, listeners } = watched()
  const reply = bus.request('a', 1, { signal })
  world.socket.says({ success: world.socket.said[0].id, body: 2 })
  await reply
  await bus.publish('news', 1, { signal })
  bus.subscribe('news', () => {}, { signal }).close()
  bus.subscribe('more', () => {}, { signal })
  bus.request('b', 1, { signal }).catch(() => {})
  bus.close()
  assert.equal(listeners(), 0)
})

test('the queue is bounded by number and by size', async (t) => {
  const world = new World(t)
  const bus = world.connect('/bus', { queue: 3 })
  const done = [1, 2, 3, 4].map((body) => bus.publish('news', body))
  assert.deepEqual((await Promise.all(done.map(outcome))).map((one) => one.name ?? one), ['pending', 'pending', 'pending', 'QueueFull'])
  const other = world.connect()
  const large = [1, 2].map(() => other.publish('news', 'x'.repeat(600000)))
  assert.deepEqual((await Promise.all(large.map(outcome))).map((one) => one.name ?? one), ['pending', 'QueueFull'])
})

test('a socket that does not empty holds messages back, in order', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  world.socket.bufferedAmount = 2 * 1024 * 1024
  const first = bus.publish('news', 1)
  await world.pass(1000)
  assert.deepEqual([await outcome(first), world.socket.said], ['pending', []])
  world.socket.bufferedAmount = 0
  bus.publish('news', 2)
  assert.deepEqual(world.socket.said.map(({ body }) => body), [1, 2])
  assert.equal(await outcome(first), undefined)
})

test('bodies that JSON would change are refused where they are given', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const circle = {}
  circle.again = [circle]
  for (const [body, path, words] of [
    [NaN, '$', 'NaN'],
    [{ a: [1, -Infinity] }, '$.a[1]', 'Infinity'],
    [10n, '$', 'BigInt'],
    [{ file: new Uint8Array(2) }, '$.file', 'Uint8Array'],
    [{ file: Buffer.of(1, 2) }, '$.file', 'Uint8Array'],
    [[new Date(NaN)], '$[0]', 'Date'],
    [new (class { toJSON() {} })(), '$', 'Undefined'],
    [[new Map()], '$[0]', 'Map'],
    [{ a: { b: new Set() } }, '$.a.b', 'Set'],
    [Promise.resolve(1), '$', 'Promise'],
    [2 ** 60, '$', '1152921504606847000'],
    ['\ud83d', '$', 'surrogate'],
    [{ '\udc00': 1 }, '$', 'surrogate'],
    [[undefined], '$[0]', 'Undefined'],
    [() => 1, '$', 'Function'],
    [circle, '$.again[0].again[0]', '128 levels'],
  ]) {
    const error = await outcome(bus.request('any', body))
    assert.deepEqual([error.name, error.path.startsWith(path), error.message.includes(words)], ['EncodeError', true, true], error.message)
  }
  const fine = { text: '\ud83d\ude00', none: undefined, off: { toJSON: () => false }, when: new Date(0), n: [-0.5, 2 ** 53 - 1, 1e-300], plain: Object.create(null) }
  await bus.publish('news', fine)
  assert.deepEqual(world.socket.said, [{ publish: 'news', body: JSON.parse(JSON.stringify(fine)) }])
})

test('what is larger than the server takes is refused, and costs nobody the link', async (t) => {
  const world = new World(t)
  const bus = await world.opened({}, { limits: { message: 1000 } })
  assert.equal((await outcome(bus.request('any', 'x'.repeat(1000)))).name, 'TooLarge')
  assert.equal((await outcome(bus.request('any', 'ü'.repeat(500)))).name, 'TooLarge')
  assert.equal(await outcome(bus.publish('any', 'x'.repeat(900))), undefined)
  assert.equal(bus.state, 'open')
})

test('a subject is text', async (t) => {
  const world = new World(t)
  const bus = world.connect()
  for (const subject of ['', 7, undefined]) assert.equal((await outcome(bus.request(subject))).name, 'TypeError')
})

test('an error of a bare server is one all the same', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  for (const [fail, name, text] of [
    [{ body: 'NotFound' }, 'NoHandler', 'NotFound'],
    [{ body: { name: 'Error', message: 'oh' } }, 'RemoteError', 'oh'],
    [{ body: 'x', code: 'length' }, 'RemoteError', 'x'],
    [{ body: 'x', code: 99 }, 'RemoteError', 'x'],
  ]) {
    const reply = bus.request('any')
    world.socket.says({ fail: world.socket.take()[0].id, ...fail })
    const error = await outcome(reply)
    assert.deepEqual([error.name, error.text, error instanceof polybus.RequestError], [name, text, true])
  }
})

test('an error is of the class that it has in Python', { skip: !process.env.ERRORS }, async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  for (const [name, code, given] of JSON.parse(process.env.ERRORS)) {
    const reply = kept(bus.request('any'))
    world.socket.says({ fail: world.socket.take()[0].id, body: 'x', code, reason: given, detail: [1], text: 'words' })
    const { text = 'words', reason, detail, subject, ...error } = await outcome(reply)
    assert.deepEqual([text, reason, detail, subject], ['words', given, [1], 'any'])
    if (name === 'DeadlineExceeded') assert.equal(error.where, 'remote')
    else assert.equal(error.code, code)
    assert.ok((await outcome(reply)) instanceof polybus[name], name)
    assert.equal((await outcome(reply)).name, name)
  }
})

// -- subscriptions

test('subscriptions are told before all else, confirmed, and restored in one turn', async (t) => {
  const world = new World(t)
  const bus = world.connect()
  await world.turn()
  const subscriptions = Array.from({ length: 1100 }, (_, n) => bus.subscribe(`n.${n}`, () => {}))
  bus.request('first').catch(() => {})
  for (let round = 0; round < 2; round++) {
    world.socket.open()
    const verbs = world.socket.frames.map((frame) => Object.keys(frame)[0])
    assert.deepEqual([verbs.lastIndexOf('subscribe'), verbs.length], [1099, round ? 1102 : 1103])
    assert.deepEqual(world.socket.take((frame) => frame.body?.confirm).map(({ body }) => body.confirm.length), [1024, 76])
    world.socket.drops()
    await world.pass(5000)
  }
  assert.equal(await outcome(subscriptions[0].ready), 'pending')
  world.socket.open()
  world.socket.greets({ refused: ['n.7'] })
  assert.equal(await outcome(subscriptions[0].ready), undefined)
  assert.equal((await outcome(subscriptions[7].ready)).name, 'Forbidden')
})

test('a refusal that nobody awaits is an event, also when it comes later', async (t) => {
  const world = new World(t)
  const bus = world.connect()
  await world.turn()
  const awaited = bus.subscribe('a', () => {}).ready
  bus.subscribe('b', () => {})
  world.socket.open()
  world.socket.greets({ refused: ['b'] })
  await awaited
  assert.deepEqual(world.errors.map(({ subject }) => subject), ['b'])
  world.socket.drops()
  await world.pass(250)
  world.socket.open()
  assert.deepEqual(world.socket.said, [{ subscribe: 'a' }])
  world.socket.greets({ refused: ['a'] })
  assert.deepEqual(world.errors.map(({ subject, name }) => [subject, name]), [['b', 'Forbidden'], ['a', 'Forbidden']])
})

test('one pattern is one subscription on the wire, and none when it is closed in the same turn', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const heard = []
  const hear = (body) => heard.push(body)
  const [one, other] = [bus.subscribe('a', hear), bus.subscribe('a', hear)]
  bus.subscribe('b', hear).close()
  await world.turn()
  assert.deepEqual(world.socket.said, [{ subscribe: 'a' }])
  world.socket.says({ publish: 'a', body: 1 })
  one.close()
  one.close()
  await world.turn()
  world.socket.says({ publish: 'a', body: 2 })
  other.close()
  bus.subscribe('a', hear).close()
  const again = bus.subscribe('a', hear)
  await world.turn()
  assert.deepEqual([world.socket.said.length, heard], [1, [1, 1, 2]])
  again.close()
  await world.turn()
  assert.deepEqual(world.socket.said.at(-1), { unsubscribe: 'a' })
})

test('a request hears what comes of it: subscriptions of its turn go before it', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  bus.subscribe('a', () => {})
  bus.notify('begin')
  assert.deepEqual(world.socket.said.map((frame) => Object.keys(frame)[0]), ['subscribe', 'request'])
})

test('patterns are those of the server', { skip: !process.env.PATTERNS }, async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const { subjects, fits } = JSON.parse(process.env.PATTERNS)
  const found = {}
  for (const pattern of Object.keys(fits)) {
    found[pattern] = []
    bus.subscribe(pattern, (body, { subject }) => found[pattern].push(subject))
  }
  for (const publish of subjects) world.socket.says({ publish })
  assert.deepEqual(found, fits)
})

test('a hearer that throws is reported, and the others hear', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const heard = []
  bus.subscribe('a', () => {
    throw new Error('mine')
  })
  bus.subscribe('a', (body, about) => heard.push([body, about]))
  world.socket.says({ publish: 'a', headers: { k: 'v' } })
  assert.deepEqual([heard, world.reported.map(({ message }) => message)], [[[null, { subject: 'a', headers: { k: 'v' } }]], ['mine']])
})

test('a client of a cluster shows where it was, and says when it has told all', async (t) => {
  const world = new World(t)
  const bus = await world.opened({}, { resume_token: 'node.1' })
  bus.subscribe('a', () => {})
  await world.turn()
  world.socket.drops(1001, 'the bus is leaving')
  await world.pass(250)
  world.socket.drops() // before the second node has answered
  await world.pass(500)
  world.socket.open()
  const { frames } = world.socket
  assert.deepEqual(frames.map(({ body, subscribe }) => body ?? subscribe), [
    { v: 1, asks: 'page', limits: true, resume_token: 'node.1' },
    'a',
    { v: 1, asks: 'page', limits: true, resumed: true, confirm: ['a'] },
  ])
})

// -- streams

test('a stream is read as it comes, with credit for what was read', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const items = bus.stream('count', 5)
  const first = items.next()
  const [{ open: id, ...frame }] = world.socket.take()
  assert.deepEqual(frame, { subject: 'count', mode: 'stream', n: 64, body: 5 })
  for (let n = 0; n < 64; n++) world.socket.says({ item: id, body: n })
  assert.deepEqual(await first, { value: 0, done: false })
  for (let n = 1; n < 33; n++) await items.next()
  assert.deepEqual(world.socket.take(), [{ credit: id, n: 32 }])
  for (let n = 33; n < 64; n++) await items.next()
  world.socket.says({ item: id, data: 'AQI=' })
  world.socket.says({ end: id })
  assert.deepEqual([...(await items.next()).value], [1, 2])
  assert.deepEqual([await items.next(), bus.pending], [{ value: undefined, done: true }, 0])
})

test('what came before the error of a stream is read before it', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const items = bus.stream('count')
  const first = items.next()
  const [{ open: id }] = world.socket.take()
  world.socket.says({ item: id, body: 1 })
  world.socket.says({ item: id, body: 2 })
  world.socket.says({ end: id, code: 5, text: 'gone', reason: 'sold', detail: 7 })
  assert.deepEqual([(await first).value, (await items.next()).value], [1, 2])
  const { name, text, reason, detail, subject } = await outcome(items.next())
  assert.deepEqual([name, text, reason, detail, subject], ['NotFound', 'gone', 'sold', 7, 'count'])
})

test('leaving the loop, or the signal, stops the handler', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const { controller, signal, listeners } = watched()
  const left = (async () => {
    for await (const one of bus.stream('count')) if (one) break
  })()
  const aborted = bus.stream('count', 1, { signal })
  const first = aborted.next()
  const [{ open: a }, { open: b }] = world.socket.take()
  world.socket.says({ item: a, body: 1 })
  await left
  controller.abort()
  assert.equal((await outcome(first)).name, 'AbortError')
  assert.deepEqual(world.socket.said, [{ end: a, code: 1 }, { end: b, code: 1 }])
  assert.deepEqual([listeners(), bus.pending], [0, 0])
})

test('a stream waits for the link within its timeout, and ends with the link', async (t) => {
  const world = new World(t)
  const bus = world.connect()
  await world.turn()
  const [late, early] = [bus.stream('count', 1, { timeout: 100 }), bus.stream('count', 2, { timeout: 1000 })].map((one) => kept(one.next()))
  await world.pass(100)
  assert.equal((await outcome(late)).name, 'DeadlineExceeded')
  world.socket.open()
  await world.pass(5000)
  assert.deepEqual([world.socket.said.length, await outcome(early)], [1, 'pending'])
  world.socket.drops()
  assert.deepEqual(sentOf(await outcome(early)), ['Disconnected', true])
  await world.pass(250)
  world.socket.open()
  assert.deepEqual(world.socket.said, [])
})

test('a server that sends more than it was allowed is stopped', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const items = bus.stream('count')
  const first = items.next()
  const [{ open: id }] = world.socket.take()
  for (let n = 0; n < 200; n++) world.socket.says({ item: id, body: n })
  await first
  assert.deepEqual([world.socket.said, bus.pending], [[{ end: id, code: 1 }], 0])
})

// -- being asked

test('the page answers, says no, and fails without words of its own', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const remove = bus.handle('where', (body, { subject, headers }) => ({ body, subject, headers }))
  bus.handle('refuse', () => {
    throw new polybus.NotFound('not here', { reason: 'moved', detail: [1] })
  })
  bus.handle('break', () => {
    throw new Error('secret')
  })
  bus.handle('bad', () => NaN)
  bus.handle('nothing', () => {})
  assert.throws(() => bus.handle('where', () => 2), polybus.BusError)
  for (const request of ['where', 'refuse', 'break', 'bad', 'nothing', '_polybus.hello', 'nobody']) {
    world.socket.says({ request, id: request, body: 1, headers: { a: 'b' } })
  }
  world.socket.says({ request: 'of the document', body: 1 })
  world.socket.says({ open: 's1', subject: 'any', mode: 'stream', n: 1 })
  await world.turn()
  const answers = Object.fromEntries(world.socket.said.map((frame) => [frame.success ?? frame.fail ?? frame.end, frame]))
  assert.deepEqual(answers.where.body, { body: 1, subject: 'where', headers: { a: 'b' } })
  assert.deepEqual(answers.refuse, { fail: 'refuse', body: 'not here', code: 5, text: 'not here', reason: 'moved', detail: [1] })
  assert.deepEqual([answers.break.code, answers.bad.code, world.reported.length], [13, 13, 2])
  assert.equal(JSON.stringify(answers).includes('secret'), false)
  assert.deepEqual(answers.nothing, { success: 'nothing' })
  assert.deepEqual(answers['_polybus.hello'].body, { v: 1 })
  assert.deepEqual([answers.nobody.code, answers['of the document'].code, answers.s1], [12, 12, { end: 's1', code: 12 }])
  remove()
  world.socket.says({ request: 'where', id: 'w2' })
  assert.equal(world.socket.said.at(-1).code, 12)
})

test('a handler of the page hears that nobody waits any more', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const signals = []
  bus.handle('long', (body, { signal }) => (signals.push(signal), new Promise(() => {})))
  for (const id of ['a', 'b', 'c']) world.socket.says({ request: 'long', id, ttl: id === 'b' ? 500 : 60000 })
  world.socket.says({ cancel: 'a' })
  await world.pass(500)
  assert.deepEqual(signals.map(({ aborted }) => aborted), [true, true, false])
  world.socket.drops()
  assert.equal(signals[2].aborted, true)
  assert.deepEqual(world.socket.said, [])
})

// -- signs of life

test('a silent server is asked after 25 s, and given up 5 s later', async (t) => {
  const world = new World(t)
  await world.opened()
  const { socket } = world
  await world.pass(20000)
  socket.says({ publish: 'a' })
  await world.pass(24000)
  assert.deepEqual(socket.frames, [])
  await world.pass(1000)
  assert.equal(socket.frames.length, 1)
  await world.pass(4999)
  assert.equal(world.bus.state, 'open')
  await world.pass(1)
  assert.match(world.states.at(-1).reason, /no sign of life/)
  assert.equal(socket.closed, true)
})

test('any frame is a sign of life, and after it the next silence is asked about too', async (t) => {
  const world = new World(t)
  await world.opened()
  for (let round = 0; round < 3; round++) {
    await world.pass(25000)
    assert.equal(world.socket.frames.length, round + 1)
    world.socket.says({ publish: 'a' })
  }
  assert.equal(world.bus.state, 'open')
})

test('each wake-up asks anew', async (t) => {
  const world = new World(t)
  await world.opened()
  await world.happens('resume', { on: world.document })
  world.socket.greets()
  await world.pass(1000)
  await world.happens('visibilitychange', { on: world.document })
  assert.equal(world.socket.take().length, 1)
  await world.pass(5000)
  assert.notEqual(world.bus.state, 'open')
})

test('a check that comes late has slept itself, and asks again', async (t) => {
  const world = new World(t)
  await world.opened()
  await world.pass(25000)
  world.sleep(3600000)
  await world.pass(1)
  assert.deepEqual([world.bus.state, world.socket.frames.length], ['open', 2])
  await world.pass(5000)
  assert.notEqual(world.bus.state, 'open')
})

test('frames that cannot be read are reported, and harm nothing', async (t) => {
  const world = new World(t)
  const bus = await world.opened()
  const reply = bus.request('any')
  const nonsense = ['{', 'null', '7', '[]', '{"success":"?"}', '{"item":"?"}', '{"cancel":"?"}', '{"publish":7}', '{"fail":"1","code":{}}', '\u0000']
  for (const frame of nonsense) world.socket.says(frame)
  world.socket.onmessage({ data: new ArrayBuffer(3) })
  world.socket.says({ success: world.socket.said[0].id, body: 1 })
  assert.deepEqual([await outcome(reply), bus.state], [1, 'open'])
})

// -- ports

test('a message port is a link as any other, and its end is the end of the bus', async (t) => {
  const world = new World(t, { page: false })
  const { port1, port2 } = new MessageChannel()
  const bus = world.connect(port1)
  const other = polybus.connect(port2)
  other.handle('double', (n) => 2 * n)
  const heard = new Promise((resolve) => bus.subscribe('news.*', (body, { subject }) => resolve([subject, body])))
  assert.equal(await bus.request('double', 4), 8)
  await other.publish('news.today', 'hello')
  assert.deepEqual(await heard, ['news.today', 'hello'])
  const closed = new Promise((resolve) => bus.addEventListener('state', (event) => event.state === 'closed' && resolve(event)))
  other.close()
  assert.equal((await closed).code, 1000)
})

test('a function may give another port after a loss', async (t) => {
  const world = new World(t, { page: false })
  const ends = []
  const bus = world.connect(() => {
    const { port1, port2 } = new MessageChannel()
    ends.push(port2)
    return port1
  })
  await bus.ready
  ends[0].start()
  ends[0].postMessage('\0bye 1001 the page was loaded anew')
  await new Promise((resolve) => bus.addEventListener('state', ({ state }) => state === 'waiting' && resolve()))
  await world.pass(250)
  assert.deepEqual([ends.length, bus.state, world.states.find(({ code }) => code).reason], [2, 'open', 'the page was loaded anew'])
  for (const end of ends) end.close()
})
