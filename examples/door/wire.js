// UBRE over a port, as small as it can be.
export function wire(port) {
  const pending = new Map(), handlers = {}, topics = {}
  const send = (message) => port.postMessage(JSON.stringify(message))
  port.onmessage = async ({ data }) => {
    const message = JSON.parse(data)
    if ('request' in message) send({ success: message.id, body: await handlers[message.request](message.body) })
    else if ('publish' in message) topics[message.publish]?.(message.body)
    else if ('success' in message) pending.get(message.success)?.resolve(message.body)
    else if ('fail' in message) pending.get(message.fail)?.reject(message.body)
  }
  port.addEventListener('close', ({ reason }) => pending.forEach(({ reject }) => reject(reason)))
  return {
    handlers,
    ask: (request, body) => new Promise((resolve, reject) => {
      const id = pending.size + 1
      pending.set(id, { resolve, reject })
      send({ request, id, body })
    }),
    subscribe: (topic, told) => { topics[topic] = told; send({ subscribe: topic }) },
  }
}
