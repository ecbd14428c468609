// Every method of the official client that the broker serves, against a broker at POSTHORN_URL with the token
// POSTHORN_TOKEN. Deliveries come to a server of this script, which verifies each with the client's receiver.
import assert from 'node:assert/strict'
import http from 'node:http'
import { Client, Receiver, SignatureError } from '@upstash/qstash'

const base = process.env.POSTHORN_URL
const token = process.env.POSTHORN_TOKEN
const client = new Client({ baseUrl: base, token, retry: { retries: 2 } })

const direct = (method, path, body) =>
  fetch(base + path, { method, body, headers: { Authorization: `Bearer ${token}` } })
const advance = async (time) => {
  const r = await direct('POST', '/testing/clock', JSON.stringify({ advance: time }))
  assert.equal(r.status, 200, await r.text())
}
const keys = async () => (await direct('GET', '/v2/keys')).json()

let well = false
const got = []
const server = http.createServer((request, response) => {
  const parts = []
  request.on('data', (part) => parts.push(part))
  request.on('end', () => {
    got.push({ method: request.method, url: request.url, headers: request.headers, body: Buffer.concat(parts).toString() })
    response.statusCode = request.url.startsWith('/fail') && !well ? 500 : 200
    response.end(`answer to ${request.url}`)
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
const verify = async (delivery, { current, next }) =>
  new Receiver({ currentSigningKey: current, nextSigningKey: next }).verify({
    signature: delivery.headers['upstash-signature'],
    body: delivery.body,
    url: sink + delivery.url,
    clockTolerance: 60,
  })

const publishing = async () => {
  const text = await client.publish({ url: `${sink}/text?a=1&b=%20`, body: 'plain', headers: { 'Content-Type': 'text/plain', 'X-Mine': 'v' }, method: 'PUT' })
  assert.match(text.messageId, /^msg_/)
  const d = await delivered('/text?a=1&b=%20')
  assert.deepEqual([d.method, d.body, d.headers['x-mine'], d.headers['content-type']], ['PUT', 'plain', 'v', 'text/plain'])
  assert.equal(d.headers['upstash-message-id'], text.messageId)
  assert.equal(await verify(d, await keys()), true)
  await assert.rejects(verify({ ...d, body: 'forged' }, await keys()), SignatureError)

  const json = await client.publishJSON({
    url: `${sink}/json`, body: { hello: 'world' }, deduplicationId: 'once', retries: 1, timeout: 5, label: ['one', 'two'], callback: `${sink}/callback`,
    failureCallback: `${sink}/failed`,
  })
  assert.deepEqual(JSON.parse((await delivered('/json')).body), { hello: 'world' })
  const again = await client.publishJSON({ url: `${sink}/json`, body: { hello: 'world' }, deduplicationId: 'once' })
  assert.equal(again.messageId, json.messageId)
  assert.equal(again.deduplicated, true)
  const told = await delivered('/callback')
  assert.equal(await verify(told, await keys()), true)
  const notice = JSON.parse(told.body)
  assert.equal(notice.sourceMessageId, json.messageId)
  assert.equal(Buffer.from(notice.body, 'base64').toString(), 'answer to /json')
  const content = { url: `${sink}/content`, body: 'same', contentBasedDeduplication: true }
  assert.equal((await client.publish(content)).messageId, (await client.publish(content)).messageId)
  await assert.rejects(client.publish({ url: 'ftp://example.com', body: '' }), /scheme|endpoint/)
  await assert.rejects(client.publish({ topic: 'nobody-knows', body: '' }), /not found/)
}

const batches = async () => {
  const out = await client.batchJSON([{ url: `${sink}/batch/1`, body: { n: 1 } }, { url: `${sink}/batch/2`, body: { n: 2 }, method: 'PATCH' }])
  assert.equal(out.length, 2)
  assert.equal((await delivered('/batch/1')).headers['upstash-message-id'], out[0].messageId)
  assert.equal((await delivered('/batch/2')).method, 'PATCH')
  const mixed = await client.batch([{ url: `${sink}/batch/3`, body: 'three', headers: { 'X-N': '3' } }, { topic: 'nobody-knows', body: '' }])
  assert.equal((await delivered('/batch/3')).headers['x-n'], '3')
  assert.match(mixed[1].error, /not found/)
}

const messages = async () => {
  const { messageId } = await client.publish({ url: `${sink}/later`, body: 'later', delay: '1h', label: 'waiting', redact: { header: ['X-Secret'] }, headers: { 'X-Secret': 's' } })
  const m = await client.messages.get(messageId)
  assert.deepEqual([m.messageId, m.url, m.body, m.label, m.maxRetries], [messageId, `${sink}/later`, 'later', 'waiting', 3])
  assert.match(m.header['X-Secret'][0], /^REDACTED:/)
  assert.ok(m.notBefore - m.createdAt >= 3_600_000)
  await client.messages.delete(messageId)
  await assert.rejects(client.messages.delete(messageId), /not found/)
  const ids = []
  for (let n = 0; n < 4; n++) ids.push((await client.publish({ url: `${sink}/never/${n}`, delay: 7200, label: `n${n}` })).messageId)
  assert.deepEqual(await client.messages.cancel(ids[0]), { cancelled: 1 })
  assert.equal((await client.messages.cancel([ids[1]])).cancelled, 1)
  assert.equal((await client.messages.cancel({ filter: { label: ['n1', 'n2'] } })).cancelled, 1)
  assert.equal((await client.messages.cancel({ all: true })).cancelled, 1)
  await assert.rejects(client.messages.get('msg_unknown'), /not found/)
}

const logs = async () => {
  const { messageId } = await client.publish({ url: `${sink}/logged`, body: 'x' })
  const seen = await until('the log', async () => {
    const page = await client.logs({ filter: { messageId } })
    return page.logs.some((n) => n.state === 'DELIVERED') && page
  })
  assert.deepEqual(seen.logs.map((n) => n.state), ['DELIVERED', 'ACTIVE', 'CREATED'])
  assert.equal(seen.cursor, undefined)
  const [end] = seen.events
  assert.deepEqual([end.messageId, end.url, end.responseStatus], [messageId, `${sink}/logged`, 200])
  const first = await client.events({ count: 2, filter: { messageId } })
  const rest = await client.logs({ count: 2, cursor: first.cursor, filter: { messageId } })
  assert.deepEqual([first.logs.length, rest.logs.length, rest.cursor], [2, 1, undefined])
  assert.equal((await client.logs({ messageIds: [messageId] })).logs.length, 3)
  assert.equal((await client.logs({ filter: { state: 'DELIVERED', host: '127.0.0.1', fromDate: new Date(Date.now() - 3_600_000) } })).logs.every((n) => n.state === 'DELIVERED'), true)
}

const groups = async () => {
  await client.urlGroups.addEndpoints({ name: 'news', endpoints: [{ name: 'one', url: `${sink}/group/1` }, { url: `${sink}/group/2` }] })
  const group = await client.urlGroups.get('news')
  assert.deepEqual(group.endpoints.map((e) => [e.name, e.url]), [['one', `${sink}/group/1`], [undefined, `${sink}/group/2`]])
  assert.deepEqual((await client.topics.list()).map((g) => g.name), ['news'])
  const out = await client.publishJSON({ urlGroup: 'news', body: { to: 'all' } })
  assert.equal(out.length, 2)
  assert.equal((await delivered('/group/1')).headers['upstash-topic-name'], 'news')
  await delivered('/group/2')
  assert.equal((await client.messages.get(out[0].messageId)).urlGroup, 'news')
  await client.urlGroups.removeEndpoints({ name: 'news', endpoints: [{ name: 'one' }] })
  assert.equal((await client.urlGroups.get('news')).endpoints.length, 1)
  await client.urlGroups.delete('news')
  await assert.rejects(client.urlGroups.get('news'), /not found/)
}

const schedules = async () => {
  const { scheduleId } = await client.schedules.create({ destination: `${sink}/tick`, cron: '* * * * *', body: 'tick', headers: { 'X-Tick': '1' }, scheduleId: 'every-minute', label: 'ticks' })
  assert.equal(scheduleId, 'every-minute')
  const s = await client.schedules.get(scheduleId)
  assert.deepEqual([s.cron, s.destination, s.isPaused, s.body, s.method, s.header['X-Tick'][0]], ['* * * * *', `${sink}/tick`, false, 'tick', 'POST', '1'])
  assert.deepEqual((await client.schedules.list()).map((x) => x.scheduleId), [scheduleId])
  await client.schedules.pause({ schedule: scheduleId })
  assert.equal((await client.schedules.get(scheduleId)).isPaused, true)
  await advance('2m')
  assert.equal(got.some((d) => d.url === '/tick'), false)
  await client.schedules.resume({ schedule: scheduleId })
  assert.equal((await client.schedules.get(scheduleId)).isPaused, false)
  await advance('1m')
  const d = await delivered('/tick')
  assert.deepEqual([d.body, d.headers['x-tick'], d.headers['upstash-schedule-id']], ['tick', '1', scheduleId])
  assert.equal(await verify(d, await keys()), true)
  await client.schedules.delete(scheduleId)
  await assert.rejects(client.schedules.get(scheduleId), /not found/)
}

const deadLetters = async () => {
  const paths = ['/fail/1', '/fail/2', '/fail/3', '/fail/4', '/fail/5']
  for (const path of paths) await client.publish({ url: sink + path, body: path, retries: 0, label: path.slice(1).replace('/', '-') })
  const list = await until('the dead letters', async () => {
    const page = await client.dlq.listMessages()
    return page.messages.length === paths.length && page.messages
  })
  const dead = (path) => list.find((m) => m.url === sink + path)
  assert.deepEqual([dead('/fail/1').responseStatus, dead('/fail/1').responseBody, dead('/fail/1').body], [500, 'answer to /fail/1', '/fail/1'])
  assert.ok(dead('/fail/1').responseHeader.Date)
  const page = await client.dlq.listMessages({ count: 2 })
  assert.equal(page.messages.length, 2)
  assert.equal((await client.dlq.listMessages({ count: 2, cursor: page.cursor })).messages.length, 2)
  assert.equal((await client.dlq.listMessages({ filter: { label: 'fail-2', responseStatus: 500 } })).messages.length, 1)
  assert.equal((await client.dlq.listMessages({ dlqIds: [dead('/fail/1').dlqId, dead('/fail/2').dlqId] })).messages.length, 2)
  assert.deepEqual(await client.dlq.delete(dead('/fail/1').dlqId), { deleted: 1 })
  await assert.rejects(client.dlq.delete(dead('/fail/1').dlqId), /not found/)
  assert.equal((await client.dlq.deleteMany({ dlqIds: [dead('/fail/2').dlqId] })).deleted, 1)
  well = true
  got.length = 0
  const one = await client.dlq.retry(dead('/fail/3').dlqId)
  assert.notEqual(one.responses[0].messageId, dead('/fail/3').messageId)
  const d = await delivered('/fail/3')
  assert.deepEqual([d.body, d.headers['upstash-message-id']], ['/fail/3', one.responses[0].messageId])
  assert.equal((await client.dlq.retry([dead('/fail/4').dlqId])).responses.length, 1)
  const rest = await client.dlq.retry({ all: true })
  assert.deepEqual([rest.responses.length, rest.cursor], [1, undefined])
  await delivered('/fail/5')
  assert.equal((await client.dlq.delete({ all: true })).deleted, 0)
}

const rotation = async () => {
  const before = await keys()
  const after = await (await direct('POST', '/v2/keys/rotate')).json()
  assert.equal(after.current, before.next)
  await client.publish({ url: `${sink}/rotated`, body: 'r' })
  const d = await delivered('/rotated')
  assert.equal(await verify(d, before), true) // who has the old pair goes on
  assert.equal(await verify(d, after), true)
  await direct('POST', '/v2/rotate')
  await client.publish({ url: `${sink}/rotated/twice`, body: 'r' })
  await assert.rejects(verify(await delivered('/rotated/twice'), before), SignatureError)
}

const queues = async () => {
  const queue = client.queue({ queueName: 'orders' })
  await queue.upsert({ parallelism: 2 })
  const shown = await queue.get()
  assert.deepEqual([shown.name, shown.parallelism, shown.paused, shown.lag], ['orders', 2, false, 0])
  await queue.pause()
  assert.equal((await queue.get()).paused, true)
  const { messageId } = await queue.enqueueJSON({ url: `${sink}/queued`, body: { n: 1 } })
  assert.equal((await client.messages.get(messageId)).queueName, 'orders')
  assert.equal((await queue.list()).length, 1)
  await queue.resume()
  assert.equal(await verify(await delivered('/queued'), await keys()), true)
  await queue.enqueue({ url: `${sink}/queued/text`, body: 'text' })
  await delivered('/queued/text')
  await client.batch([{ url: `${sink}/queued/batch`, queueName: 'orders', body: 'b' }])
  await delivered('/queued/batch')
  await until('an empty queue', async () => (await queue.get()).lag === 0)
  await queue.delete()
  await assert.rejects(queue.get(), /not found/)
}

const flowControl = async () => {
  await client.publish({ url: `${sink}/flow`, body: 'f', flowControl: { key: 'tenant', rate: 10, period: '1m', parallelism: 3 } })
  await delivered('/flow')
  const f = await client.flowControl.get('tenant')
  assert.deepEqual([f.flowControlKey, f.parallelismMax, f.rateMax, f.ratePeriod, f.isPaused], ['tenant', 3, 10, 60, false])
  await client.flowControl.pause('tenant')
  assert.equal((await client.flowControl.get('tenant')).isPaused, true)
  await client.flowControl.resume('tenant')
  await client.flowControl.pin('tenant', { parallelism: 5 })
  assert.equal((await client.flowControl.get('tenant')).isPinnedParallelism, true)
  await client.flowControl.unpin('tenant', { parallelism: true })
  await client.flowControl.resetRate('tenant')
  assert.ok((await client.flowControl.getGlobalParallelism()).parallelismMax > 0)
}

const steps = { publishing, batches, messages, logs, groups, schedules, deadLetters, rotation }
for (const [step, path] of [[queues, '/v2/queues'], [flowControl, '/v2/flowControl']]) {
  if ((await direct('GET', path)).status !== 404) steps[step.name] = step
  else console.log(`this broker does not serve ${path}`)
}
let failures = 0
for (const [name, step] of Object.entries(steps)) {
  try {
    await step()
    console.log(`ok ${name}`)
  } catch (error) {
    failures++
    console.log(`FAILED ${name}: ${error.stack}`)
  }
}
server.closeAllConnections()
server.close()
process.exitCode = failures > 0 ? 1 : 0
