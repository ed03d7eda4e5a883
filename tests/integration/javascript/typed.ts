// What tsc says of a page with the types of its bus, and without.
import { connect, NotFound } from 'polybus'
import { connectToHost } from 'polybus/frames'
import type { Shop } from './shop.js'

export async function right(): Promise<void> {
  const bus = connect<Shop>('/bus', { token: async ({ refused }) => (refused ? null : 'x') })
  const name: string = (await bus.request('user.get', { id: 7 }, { timeout: 100 })).name
  const count: number = await bus.request('user.count')
  for await (const user of bus.stream('user.watch', count)) console.log(user.tags.length, name)
  using subscription = bus.subscribe('reading.*', (value, { subject }) => console.log(value.toFixed(), subject.length))
  await subscription.ready
  await bus.publish('seen.page', 1)
  bus.addEventListener('state', ({ state, delay }) => console.log(state === 'waiting' && delay))
  const loose = connect(() => connectToHost({ origins: ['https://shop.example'] }))
  const any: string = await loose.request('whatever', { a: 1 }).catch((error) => error instanceof NotFound && error.detail)
  loose.handle('x', (body, { signal }) => signal.aborted && any + body)
}

export async function wrong(): Promise<void> {
  const bus = connect<Shop>('/bus')
  // @ts-expect-error: an id is a number
  await bus.request('user.get', { id: 'seven' })
  // @ts-expect-error: the body is missing
  await bus.request('user.get')
  // @ts-expect-error: nobody serves it
  await bus.request('user.gett', { id: 7 })
  // @ts-expect-error: the answer has no such member
  console.log((await bus.request('user.get', { id: 7 })).nmae)
  // @ts-expect-error: nobody publishes it
  bus.subscribe('order.lost', () => {})
  // @ts-expect-error: the server takes no such publication
  await bus.publish('order.placed', await bus.request('user.get', { id: 7 }))
  // @ts-expect-error: it is a stream
  await bus.request('user.watch', 7)
  // @ts-expect-error: there is no such state
  console.log(bus.state === 'opened')
}
