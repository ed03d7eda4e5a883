// A peer made of npm ubre, worked by the tests: one JSON command per line on standard input, one JSON line per outcome or
// event on standard output.
//
//   node peer.mjs client ws7 URL         node peer.mjs server ws7 [PORT]
//
// On ws 7 the package's own wrappers are used. On ws 8 they hear nothing, so there it is the manual hook-up of its README,
// with the two corrections that it needs: a server is `open`, and `ubre(ws).close()` ends one peer (`ubre.close(ws)` all).

import readline from 'node:readline'
import Ubre from 'ubre'
import Ws7 from 'ws'
import { WebSocket as WebSocket8, WebSocketServer as WebSocketServer8 } from 'ws8'

const [role, version, where] = process.argv.slice(2)
const manual = version === 'ws8'
const sockets = []
const frames = []
const received = new Map()
const held = []

const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')

function watch(ws) {
  sockets.push(ws)
  ws.on('message', (data) => frames.push(data.toString()))
  ws.on('close', (code, reason) => say({ event: 'closed', code, reason: reason.toString() }))
  ws.on('error', (error) => say({ event: 'failed', message: error.message }))
}

function client() {
  const ws = manual ? new WebSocket8(where) : new Ws7(where)
  watch(ws)
  let ubre
  if (manual) {
    ubre = Ubre({ send: (message) => ws.send(message) })
    ws.onmessage = ({ target, data }) => ubre.message(data, target)
    ws.onopen = () => ubre.open()
    ws.onclose = () => ubre.close()
  } else {
    ubre = Ubre.ws(ws)
  }
  ws.on('open', () => say({ event: 'ready' }))
  return ubre
}

function server() {
  const options = { host: '127.0.0.1', port: Number(where || 0) }
  const wss = manual ? new WebSocketServer8(options) : new Ws7.Server(options)
  // In front of the package, so that a peer is known here before it is heard.
  wss.on('connection', watch)
  let ubre
  if (manual) {
    ubre = Ubre({ send: (message, ws) => ws.send(message), open: true })
    wss.on('connection', (ws) => {
      ws.on('message', (data) => ubre.message(data, ws))
      ws.on('close', () => ubre(ws).close())
    })
  } else {
    ubre = Ubre.wss(wss)
  }
  wss.on('connection', () => say({ event: 'connected' }))
  wss.on('listening', () => say({ event: 'ready', port: wss.address().port }))
  return ubre
}

const ubre = role === 'client' ? client() : server()
// The functions below reach the peer at the other end: a client has one, a server that of the last connection.
const there = () => (role === 'client' ? ubre : ubre(sockets[sockets.length - 1]))

ubre.onSubscribe = (topic) => say({ event: 'subscribed', topic })
ubre.onUnsubscribe = (topic) => say({ event: 'unsubscribed', topic })

ubre.handle('echo', (body) => body)
ubre.handle('later', (body) => new Promise((resolve) => setImmediate(() => resolve(body))))
ubre.handle('fail', () => {
  throw Object.assign(new TypeError('the pump is dry'), { code: 'EPUMP', pressure: 0 })
})
ubre.handle('reject', (body) => Promise.reject(body))
ubre.handle('nothing', () => undefined)
// Answers nobody before `of` requests are here, and then the last one first.
ubre.handle('gather', ({ n, of }) =>
  new Promise((resolve) => {
    held.push(() => resolve(n))
    if (held.length === of) held.splice(0).reverse().forEach((answer) => answer())
  })
)

const commands = {
  request: ({ subject, body }) => there().request(subject, body),
  flood: ({ subject, count }) =>
    Promise.all(Array.from({ length: count }, (_, n) => there().request(subject, { n, of: count }))),
  subscribe: ({ topic }) => {
    received.set(topic, there().subscribe(topic, (body) => say({ event: 'published', topic, body })))
  },
  unsubscribe: ({ topic }) => received.get(topic).unsubscribe(),
  publish: ({ topic, body }) => ubre.publish(topic, body),
  // What the package does when the other end subscribes. It sends publications only for what the other end asked for.
  wanted: ({ topic }) => ubre.message(JSON.stringify({ subscribe: topic })),
  send: ({ text }) => sockets[sockets.length - 1].send(text),
  frames: () => frames,
  close: () => sockets[sockets.length - 1].close(1000),
}

const input = readline.createInterface({ input: process.stdin })
input.on('close', () => process.exit())
input.on('line', async (line) => {
  const { n, command, ...facts } = JSON.parse(line)
  try {
    const value = await commands[command](facts)
    say({ n, value: value === undefined ? null : value })
  } catch (error) {
    say({ n, error: error instanceof Error ? { message: error.message } : error })
  }
})
