// A client of bench/pages.py: node pages.mjs SYSTEM URL. Each line of standard input is a workload and its seconds, each line of
// standard output what it did.
import { createInterface } from 'node:readline'
import { connect } from '../sdk/polybus/javascript/polybus.js'

const [name, url] = process.argv.slice(2)
const installed = (path) => import(new URL(`../tests/integration/interop/node/node_modules/${path}`, import.meta.url))
const { WebSocket } = await installed('ws8/wrapper.mjs')
const body = { id: 7, name: 'x'.repeat(47) } // 64 bytes of JSON
const BURST = 2000

const systems = {
  async polybus() {
    const bus = connect(url, { WebSocket })
    await bus.ready
    const hear = (heard) => bus.subscribe('bench.fan', heard).ready
    return { ask: () => bus.request('bench.echo', body), burst: () => bus.request('bench.burst', BURST), hear }
  },
  async ubre() {
    const { default: Ubre } = await installed('ubre/src/index.js')
    const socket = new WebSocket(url, ['ubre'])
    const ubre = Ubre({ send: (text) => socket.send(text) })
    socket.onmessage = ({ data }) => ubre.message(data)
    await new Promise((resolve) => (socket.onopen = resolve))
    ubre.open()
    const hear = (heard) => ubre.subscribe('bench.fan', heard)
    return { ask: () => ubre.request('bench.echo', body), burst: () => ubre.request('bench.burst', BURST), hear }
  },
  async socketio() {
    const { io } = await installed('socket.io-client/build/esm/index.js')
    const socket = io(url, { transports: ['websocket'] })
    await new Promise((resolve) => socket.on('connect', resolve))
    const hear = (heard) => socket.on('fan', heard)
    return { ask: () => socket.emitWithAck('echo', body), burst: () => socket.emitWithAck('burst', BURST), hear }
  },
}

const client = await systems[name]()
let heard = 0
let all = () => {}
await client.hear(() => ++heard === BURST && all())

async function requests(inFlight, end) {
  let count = 0
  const work = async () => {
    for (; performance.now() < end; count++) await client.ask()
  }
  await Promise.all(Array.from({ length: inFlight }, work))
  return count
}

async function publications(end) {
  let count = 0
  for (; performance.now() < end; count += BURST) {
    heard = 0
    const received = new Promise((resolve) => (all = resolve))
    await client.burst()
    await received
  }
  return count
}

const workloads = { serial: (end) => requests(1, end), 64: (end) => requests(64, end), publications }

for await (const line of createInterface({ input: process.stdin })) {
  const [workload, seconds] = line.split(' ')
  const [began, used] = [performance.now(), process.cpuUsage()]
  const count = await workloads[workload](began + seconds * 1000)
  const { user, system } = process.cpuUsage(used)
  console.log(JSON.stringify({ count, seconds: (performance.now() - began) / 1000, cpu: (user + system) / 1e6 }))
}
process.exit()
