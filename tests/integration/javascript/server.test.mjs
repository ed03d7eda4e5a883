// polybus.js and a real server: what the two mean by the same frames. PYTHON, WS and PORT say with what.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { connect as dial } from 'node:net'
import { after, afterEach, before, beforeEach, test } from 'node:test'
import * as polybus from '../../../sdk/polybus/javascript/polybus.js'

const { WebSocket } = await import(process.env.WS)
const { PORT } = process.env
const URL = `ws://127.0.0.1:${PORT}/bus`
const HERE = import.meta.dirname ?? new globalThis.URL('.', import.meta.url).pathname
let server
let lines = []
const waiting = new Set()
let bus

async function start() {
  server = spawn(process.env.PYTHON, ['served.py', PORT], { cwd: HERE, stdio: ['ignore', 'pipe', 'inherit'] })
  server.stdout.setEncoding('utf8').on('data', (text) => {
    lines.push(...text.split('\n').filter(Boolean))
    for (const look of waiting) look()
  })
  while (!(await reached())) await new Promise((resolve) => setTimeout(resolve, 50))
}

const reached = () =>
  new Promise((resolve) => {
    const socket = dial(PORT, '127.0.0.1', () => resolve(socket.destroy()))
    socket.on('error', () => resolve(null))
  })

const said = (line) =>
  new Promise((resolve) => {
    const look = () => lines.includes(line) && waiting.delete(look) | resolve()
    waiting.add(look)
    look()
  })

const stop = (signal) =>
  new Promise((resolve) => {
    server.once('exit', resolve)
    server.kill(signal)
  })

const became = (state, of = bus) =>
  of.state === state || new Promise((resolve) => of.addEventListener('state', (event) => event.state === state && resolve(event)))

const refused = (promise) => promise.then(() => 'kept', (error) => error)

before(start)
after(() => stop('SIGKILL'))
beforeEach(() => {
  lines = []
  bus = polybus.connect(URL, { WebSocket, token: 'ann' })
})
afterEach(() => bus.close())

test('requests, errors, publications, and being asked', { timeout: 60000 }, async () => {
  assert.equal(await bus.request('add', [1, 2, 3]), 6)
  const error = await refused(bus.request('fail', 'sold'))
  assert.ok(error instanceof polybus.NotFound)
  const { code, text, reason, detail, subject } = error
  assert.deepEqual({ code, text, reason, detail, subject }, { code: 5, text: 'no such thing', reason: 'sold', detail: { left: 0 }, subject: 'fail' })
  assert.ok((await refused(bus.request('nobody'))) instanceof polybus.NoHandler)
  assert.ok((await refused(bus.request('add', 'x'))) instanceof polybus.BadRequest)
  const heard = []
  const subscription = bus.subscribe('told.*', (body, about) => heard.push([about.subject, body]))
  await bus.request('tell', { a: [1, null, '\u2028'] })
  await subscription.ready
  assert.deepEqual(heard, [['told.all', { a: [1, null, '\u2028'] }]])
  assert.equal(await bus.request('add', Array(600000).fill(1)), 600000) // 1.2 MB: the server has said that it takes 2 MiB
  assert.ok((await refused(bus.request('add', Array(1200000).fill(1)))) instanceof polybus.TooLarge)
  await bus.publish('seen.page', 7)
  await said('seen 7')
  bus.handle('page.where', (body, { headers }) => [body, headers.by])
  assert.deepEqual(await bus.request('ask back', 1), [1, 'server'])
})

test('a subscription that authorize forbids is refused, and the others are not', { timeout: 60000 }, async () => {
  const [open, secret] = [bus.subscribe('told.all', () => {}), bus.subscribe('secret.all', () => {})]
  await open.ready
  assert.equal((await refused(secret.ready)).name, 'Forbidden')
})

test('a deadline and a signal stop the handler', { timeout: 60000 }, async () => {
  await bus.ready
  const late = await refused(bus.request('forever', null, { timeout: 200 }))
  assert.equal(late.name, 'DeadlineExceeded')
  await said('forever stopped')
  lines = []
  const controller = new AbortController()
  const taken = refused(bus.request('forever', null, { signal: controller.signal }))
  await bus.request('add', [])
  controller.abort()
  assert.equal((await taken).name, 'AbortError')
  await said('forever stopped')
})

test('a slow reader of a stream is at most 64 items behind, and leaving it stops the handler', { timeout: 60000 }, async () => {
  const read = []
  for await (const item of bus.stream('count', 1e9)) {
    read.push(item)
    if (read.length === 500) break
  }
  assert.deepEqual([read.length, read.at(-1)], [500, 499])
  await bus.request('add', [])
  while (!lines.some((line) => line.startsWith('count stopped'))) await bus.request('add', [])
  const [ahead] = lines.map((line) => Number(line.split(' ').at(-1)))
  assert.ok(ahead <= 500 + 64, `${ahead}`)
  let sum = 0
  for await (const item of bus.stream('count', 1000)) sum += item
  assert.equal(sum, 499500)
})

test('kill -9 with 100 requests under way and 50 that wait: each is told, and none runs twice', { timeout: 60000 }, async () => {
  await bus.ready
  const left = Array.from({ length: 100 }, (_, id) => refused(bus.request('work', { id, seconds: 60 })))
  await said('run 63') // as many of one peer run at the same time
  const lost = became('waiting')
  await stop('SIGKILL')
  await lost
  const waits = Array.from({ length: 50 }, (_, id) => bus.request('work', { id: 100 + id }))
  for (const error of await Promise.all(left)) assert.deepEqual([error.name, error.sent], ['Disconnected', true])
  assert.equal(bus.pending, 50)
  await start()
  assert.deepEqual(await Promise.all(waits), Array.from({ length: 50 }, (_, id) => 100 + id))
  const runs = lines.filter((line) => line.startsWith('run'))
  assert.deepEqual([new Set(runs).size, bus.pending], [runs.length, 0])
})

test('a stream outlasts the tokens that end while it is read', { timeout: 60000 }, async () => {
  let number = 0
  const states = []
  const other = polybus.connect(URL, { WebSocket, token: () => `short${++number}` })
  other.addEventListener('state', ({ state }) => states.push(state))
  const third = said('shown short3').then(() => true)
  for await (const _ of other.stream('tick')) if (await Promise.race([third, false])) break // the first two have ended, or nearly
  assert.deepEqual([states, other.state], [['connecting', 'open'], 'open'])
  other.close()
})

test('SIGTERM: what runs is answered, what was not read can be asked again', { timeout: 60000 }, async () => {
  await bus.ready
  const runs = bus.request('work', { id: 1, seconds: 0.5 })
  await said('run 1')
  const [answer, event] = await Promise.all([runs, became('waiting'), stop('SIGTERM')])
  assert.deepEqual([answer, event.code, event.reason], [1, 1001, 'the bus is leaving'])
  await start()
})

test('a token that is refused is told in words, and shown once; a function is asked once more', { timeout: 60000 }, async () => {
  for (const [token, name, words, knocks] of [
    ['old', 'Unauthorized', 'not authenticated', 1],
    [() => 'old', 'Unauthorized', 'not authenticated', 2],
    [() => 'banned', 'Forbidden', 'not you', 1],
  ]) {
    const other = polybus.connect(URL, { WebSocket, token })
    let tried = 0
    other.addEventListener('state', ({ state }) => (tried += state === 'connecting'))
    const error = await refused(other.ready)
    assert.deepEqual([error.name, error.text, tried, other.state], [name, words, knocks, 'closed'])
  }
})
