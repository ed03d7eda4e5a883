// An end made of npm ubre on its own wrappers of ws 7, for bench/systems/npm_ubre.py.
//
//   node npm_ubre.mjs FOLDER server            says {"url": ...}
//   node npm_ubre.mjs FOLDER client URL BODY   takes one JSON command per line, and says one JSON line when it is done
//
// FOLDER is where the packages are installed. Both end with their standard input.

import { createRequire } from 'node:module'
import readline from 'node:readline'
import { pathToFileURL } from 'node:url'

const [folder, role, url, body] = process.argv.slice(2)
const require = createRequire(folder + '/package.json')
const Ws = require('ws')
const { default: Ubre } = await import(pathToFileURL(`${folder}/node_modules/ubre/src/index.js`))

const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')
// Called when there is somebody to take the lines: what comes earlier would be lost.
function listen(take) {
  const input = readline.createInterface({ input: process.stdin })
  input.on('line', take)
  input.on('close', () => process.exit())
}

function server() {
  const wss = new Ws.Server({ host: '127.0.0.1', port: 0, perMessageDeflate: false })
  const ubre = Ubre.wss(wss)
  let count = 0
  let wanted = -1
  let reached
  ubre.handle('bench.echo', (value) => value)
  // A peer publishes only what the other end has subscribed to.
  wss.on('connection', (ws) => ubre(ws).subscribe('bench.count', () => {
    if (++count === wanted) reached(count)
  }))
  ubre.handle('bench.counted', (total) => (count >= total ? count : new Promise((resolve) => ((wanted = total), (reached = resolve)))))
  listen(() => {})
  wss.on('listening', () => say({ url: `ws://127.0.0.1:${wss.address().port}` }))
}

async function client() {
  const ws = new Ws(url, { perMessageDeflate: false })
  const ubre = Ubre.ws(ws)
  await new Promise((resolve, reject) => (ws.on('open', resolve), ws.on('error', reject)))
  // As if the server had asked for them: the package publishes only what it is asked for, and ours does not ask strangers.
  ubre.message(JSON.stringify({ subscribe: 'bench.count' }), ws)
  const value = JSON.parse(body)
  let published = 0
  const turn = () => new Promise(setImmediate)

  async function request({ in_flight, seconds }) {
    const end = performance.now() + seconds * 1000
    let count = 0
    const laps = []
    const one = async () => {
      do {
        const started = performance.now()
        await ubre.request('bench.echo', value)
        count++
        if (in_flight === 1) laps.push((performance.now() - started) / 1000)
      } while (performance.now() < end)
    }
    await Promise.all(Array.from({ length: in_flight }, one))
    return { count, seconds: laps }
  }

  async function publish({ seconds }) {
    const end = performance.now() + seconds * 1000
    let count = 0
    do {
      ubre.publish('bench.count', value)
      count++
      if (count % 64 === 0) await turn()
      while (ws.bufferedAmount > 65536) await turn()
    } while (performance.now() < end)
    published += count
    const counted = await ubre.request('bench.counted', published)
    if (counted !== published) throw new Error(`${published - counted} of ${published} messages were lost`)
    return { count }
  }

  const commands = { open: () => ({}), request, publish }
  listen(async (line) => {
    const { command, ...facts } = JSON.parse(line)
    say(await commands[command](facts))
  })
}

await (role === 'server' ? server() : client())
