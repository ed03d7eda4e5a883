// A client of npm @nats-io/transport-node, worked by the tests as peer.mjs is.
//
//   node nats.mjs 127.0.0.1:4222

import readline from 'node:readline'
import { RequestError, connect, headers } from '@nats-io/transport-node'

const nc = await connect({ servers: process.argv[2], reconnectTimeWait: 10 })
const heard = new Map()

const say = (line) => process.stdout.write(JSON.stringify(line) + '\n')
const bytes = (body, hex) => (hex === undefined ? (body === undefined ? undefined : JSON.stringify(body)) : Buffer.from(hex, 'hex'))

function made(given) {
  if (!given) return undefined
  const h = headers()
  for (const [name, values] of Object.entries(given)) for (const value of [values].flat()) h.append(name, value)
  return h
}

function shown(message) {
  const names = message.headers ? Object.fromEntries([...message.headers.keys()].map((name) => [name, message.headers.values(name)])) : null
  return { subject: message.subject, hex: Buffer.from(message.data).toString('hex'), headers: names, reply: message.reply || null }
}

const answers = {
  echo: (message) => message.respond(message.data, { headers: message.headers }),
  nothing: () => undefined,
}

const commands = {
  // What has been heard by then is known to the server: a subscription is, when this has an outcome.
  subscribe: async ({ subject, queue, answer }) => {
    const key = queue ? `${subject} ${queue}` : subject
    heard.set(key, [])
    nc.subscribe(subject, {
      queue,
      callback: (error, message) => {
        if (error) return say({ event: 'failed', message: error.message })
        heard.get(key).push(shown(message))
        answers[answer || 'nothing'](message)
      },
    })
    await nc.flush()
  },
  heard: ({ key }) => heard.get(key),
  request: async ({ subject, body, hex, headers, timeout }) => {
    try {
      return shown(await nc.request(subject, bytes(body, hex), { timeout: timeout || 20000, headers: made(headers) }))
    } catch (error) {
      const nobody = error instanceof RequestError && error.isNoResponders()
      throw new Error(nobody ? 'no responders' : `${error.name}: ${error.message}`)
    }
  },
  flood: async ({ subject, count, from }) => {
    const asked = Array.from({ length: count }, (_, n) => nc.request(subject, JSON.stringify(n + (from || 0)), { timeout: 20000 }))
    return (await Promise.all(asked)).map((message) => message.json())
  },
}

const input = readline.createInterface({ input: process.stdin })
input.on('close', () => process.exit())
input.on('line', async (line) => {
  const { n, command, ...facts } = JSON.parse(line)
  try {
    const value = await commands[command](facts)
    say({ n, value: value === undefined ? null : value })
  } catch (error) {
    say({ n, error: error.message })
  }
})
say({ event: 'ready' })
