// Every method of the official client of version 1, as qstash.mjs does it for version 2.
import assert from 'node:assert/strict'
import http from 'node:http'
import * as qstash from '@upstash/qstash'

const { Client, Receiver } = qstash.default ?? qstash
const base = process.env.POSTHORN_URL
const token = process.env.POSTHORN_TOKEN
const client = new Client({ baseUrl: base, token, retry: false })

const direct = async (method, path) => (await fetch(base + path, { method, headers: { Authorization: `Bearer ${token}` } })).json()

const got = []
const server = http.createServer((request, response) => {
  const parts = []
  request.on('data', (part) => parts.push(part))
  request.on('end', () => {
    got.push({ method: request.method, url: request.url, headers: request.headers, body: Buffer.concat(parts).toString() })
    response.end('ok')
  })
})
await new Promise((done) => server.listen(0, '127.0.0.1', done))
const sink = `http://127.0.0.1:${server.address().port}`

const until = async (what, holds) => {
  for (const end = Date.now() + 30_000; ;) {
    const value = await holds()
    if (value) return value
    assert.ok(Date.now() < end, `waited too long for ${what}`)
    await new Promise((done) => setTimeout(done, 20))
  }
}
const delivered = (path) => until(`a delivery to ${path}`, () => got.find((d) => d.url === path))
const verify = (delivery, { current, next }) =>
  new Receiver({ currentSigningKey: current, nextSigningKey: next }).verify({
    signature: delivery.headers['upstash-signature'],
    body: delivery.body,
    url: sink + delivery.url,
    clockTolerance: 60,
  })

const publishing = async () => {
  const { messageId } = await client.publishJSON({ url: `${sink}/json`, body: { a: 1 }, deduplicationId: 'first', retries: 2, callback: `${sink}/callback`, headers: { 'Upstash-Forward-X-Mine': 'v' } })
  assert.match(messageId, /^msg_/)
  const d = await delivered('/json')
  assert.deepEqual([JSON.parse(d.body), d.headers['x-mine'], d.headers['content-type']], [{ a: 1 }, 'v', 'application/json'])
  assert.equal(await verify(d, await direct('GET', '/v1/keys')), true)
  assert.equal(await verify(await delivered('/callback'), await direct('GET', '/v1/keys')), true)
  const again = await client.publish({ url: `${sink}/json`, body: '{}', deduplicationId: 'first' })
  assert.deepEqual([again.messageId, again.deduplicated], [messageId, true])
  await client.publish({ url: `${sink}/text`, body: 'text', contentBasedDeduplication: true, notBefore: 1 })
  assert.equal((await delivered('/text')).body, 'text')
  await assert.rejects(client.publish({ topic: 'nobody-knows', body: '' }), /not found/)
}

const messages = async () => {
  const { messageId: id } = await client.publish({ url: `${sink}/later`, body: 'later', delay: 3600 })
  const m = await client.messages.get({ id })
  assert.deepEqual([m.messageId, m.url, m.body, m.settings.retries], [id, `${sink}/later`, 'later', 3])
  assert.equal((await client.messages.list()).messages[0].messageId, id)
  assert.deepEqual((await client.messages.tasks({ id })).tasks.map((t) => t.messageId), [id])
  assert.deepEqual((await client.messages.logs({ id })).events.map((n) => n.state), ['CREATED'])
  await client.messages.delete({ id })
  await assert.rejects(client.messages.delete({ id }), /not found/)
  assert.deepEqual((await client.messages.logs({ id })).events.map((n) => n.state), ['CANCELED', 'CANCEL_REQUESTED', 'CREATED'])
  assert.ok((await client.logs()).events.length > 3)
}

const topics = async () => {
  const topic = await client.topics.create({ name: 'news' })
  assert.match(topic.topicId, /^tpc_/)
  const endpoint = await client.endpoints.create({ topicName: 'news', url: `${sink}/endpoint` })
  assert.match(endpoint.endpointId, /^ept_/)
  const second = await client.endpoints.create({ topicId: topic.topicId, url: `${sink}/second` })
  await client.endpoints.update({ id: second.endpointId, url: `${sink}/moved` })
  assert.equal((await client.endpoints.get({ id: second.endpointId })).url, `${sink}/moved`)
  assert.equal((await client.endpoints.list()).length, 2)
  await client.topics.update({ id: topic.topicId, name: 'papers' })
  assert.equal((await client.topics.get({ name: 'papers' })).endpoints.length, 2)
  assert.equal((await client.topics.get({ id: topic.topicId })).name, 'papers')
  assert.equal((await client.topics.list()).length, 1)
  assert.match((await client.publish({ topic: 'papers', body: 't' })).messageId, /^msg_/)
  await delivered('/endpoint')
  await delivered('/moved')
  await client.endpoints.delete({ id: endpoint.endpointId })
  await client.topics.delete({ name: 'papers' })
  await assert.rejects(client.topics.get({ id: topic.topicId }), /not found/)
}

const schedules = async () => {
  const { scheduleId: id } = await client.publish({ url: `${sink}/tick`, body: 'tick', cron: '* * * * *' })
  assert.match(id, /^scd_/)
  const s = await client.schedules.get({ id })
  assert.deepEqual([s.scheduleId, s.cron, s.content.body, s.destination.url], [id, '* * * * *', 'tick', `${sink}/tick`])
  assert.deepEqual((await client.schedules.list()).map((x) => x.scheduleId), [id])
  const moved = await fetch(base + '/testing/clock', { method: 'POST', body: '{"advance":"1m"}', headers: { Authorization: `Bearer ${token}` } })
  assert.equal(moved.status, 200)
  assert.equal((await delivered('/tick')).headers['upstash-schedule-id'], id)
  await client.schedules.delete({ id })
  await assert.rejects(client.schedules.get({ id }), /not found/)
}

const rotation = async () => {
  const before = await direct('GET', '/v1/keys')
  const after = await direct('POST', '/v1/keys/rotate')
  assert.equal(after.current, before.next)
  await client.publish({ url: `${sink}/rotated`, body: 'r' })
  assert.equal(await verify(await delivered('/rotated'), after), true)
  // This receiver throws at the first key that does not fit, so that the old pair is tried as one key.
  assert.equal(await verify(await delivered('/rotated'), { current: before.next, next: before.next }), true)
}

let failures = 0
for (const step of [publishing, messages, topics, schedules, rotation]) {
  try {
    await step()
    console.log(`ok ${step.name}`)
  } catch (error) {
    failures++
    console.log(`FAILED ${step.name}: ${error.stack}`)
  }
}
server.closeAllConnections()
server.close()
process.exitCode = failures > 0 ? 1 : 0
