import { screen } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../../testing/render';
import { FakeServer, type Reply } from '../../../testing/server';

const id = '11111111-2222-4333-8444-555555555555';
const path = `POST /server/services/${id}/call`;
const details = {
  endpoint_id: id,
  name: 'my-service',
  status: 'healthy',
  reason: 'all-ready',
  active_routes: [],
  revisions: [],
  runtime_variant: 'vllm',
  environ: {},
  secret_names: [],
  resources: {},
  service_endpoint: 'http://127.0.0.1:10200/',
  is_public: false,
  policy: {},
};
const of = (status: number, type: string, raw: BodyInit): Reply => ({
  raw,
  headers: { 'X-BackendAI-Endpoint-Status': String(status), 'X-BackendAI-Endpoint-Type': type },
});
const json = (body: unknown, status = 200) => of(status, 'application/json', JSON.stringify(body));

interface Call {
  method: string;
  path: string;
  body?: string;
}
let server: FakeServer;
let answer: (call: Call, request: Request) => Reply;
beforeEach(() => {
  server = new FakeServer();
  server.on(`GET /func/services/${id}`, () => ({ body: details }));
  server.on(path, (body, request) => {
    const call = body as unknown as Call;
    return call.path === '/v1/models' ? json({ data: [{ id: 'llama' }, { id: 'other' }] }) : answer(call, request);
  });
});
const calls = () => server.requests.filter(({ key }) => key === path).map(({ body }) => body as unknown as Call);

/** A stream that a test writes, which notices when it is read no more. */
function stream() {
  const encoder = new TextEncoder();
  let controller: ReadableStreamDefaultController<Uint8Array> | undefined;
  const state = { isCancelled: false };
  const body = new ReadableStream<Uint8Array>({
    start: (given) => {
      controller = given;
    },
    cancel: () => {
      state.isCancelled = true;
    },
  });
  return {
    body,
    state,
    token: (content: string) =>
      controller?.enqueue(encoder.encode(`data: ${JSON.stringify({ choices: [{ delta: { content } }] })}\n\n`)),
    fail: () => controller?.error(new TypeError('network')),
    end: () => controller?.close(),
  };
}

async function say(text: string) {
  await userEvent.type(await screen.findByRole('textbox', { name: 'Message' }), text);
  await userEvent.click(screen.getByRole('button', { name: 'Send' }));
}

describe('the playground', () => {
  it('shows an answer token by token as text, and goes on from it', async () => {
    const first = stream();
    answer = () => of(200, 'text/event-stream', first.body);
    openPage(`/services/${id}/playground`, server);
    await userEvent.selectOptions(await screen.findByRole('combobox', { name: 'Model' }), 'other');
    await userEvent.type(screen.getByRole('textbox', { name: 'System message' }), 'be brief');
    await say('hello');
    expect(await screen.findByText(/^(waiting for the service|answering)$/)).toBeDefined();
    first.token('<img src=x onerror=alert(1)>');
    expect(await screen.findByText('<img src=x onerror=alert(1)>')).toBeDefined();
    expect(document.querySelector('img')).toBeNull();
    first.token(' more');
    first.end();
    expect(await screen.findByText('complete')).toBeDefined();
    expect(screen.getByText(/first token after .* about 2 tokens/)).toBeDefined();
    answer = () => json({ choices: [{ message: { content: 'bye' } }] });
    await say('and?');
    expect(await screen.findByText('bye')).toBeDefined();
    expect(JSON.parse(calls().at(-1)?.body ?? '')).toMatchObject({
      model: 'other',
      messages: [
        { role: 'system', content: 'be brief' },
        { role: 'user', content: 'hello' },
        { role: 'assistant', content: '<img src=x onerror=alert(1)> more' },
        { role: 'user', content: 'and?' },
      ],
    });
    await userEvent.click(screen.getByRole('button', { name: 'New conversation' }));
    expect(screen.queryByText('bye')).toBeNull();
  });
  it('stops an answer and keeps what there is of it', async () => {
    const endless = stream();
    let signal: AbortSignal | undefined;
    answer = (_, request) => {
      signal = request.signal;
      request.signal.addEventListener('abort', endless.fail);
      return of(200, 'text/event-stream', endless.body);
    };
    openPage(`/services/${id}/playground`, server);
    await say('hello');
    endless.token('half');
    await screen.findByText('half');
    await userEvent.click(screen.getByRole('button', { name: 'Stop' }));
    expect(await screen.findByText('stopped')).toBeDefined();
    expect(signal?.aborted).toBe(true);
    expect(screen.getByText('half')).toBeDefined();
    expect(screen.getByRole('button', { name: 'Send' })).toBeDefined();
  });
  it('ends the call when its page is left', async () => {
    const endless = stream();
    let signal: AbortSignal | undefined;
    answer = (_, request) => {
      signal = request.signal;
      return of(200, 'text/event-stream', endless.body);
    };
    const { unmount } = openPage(`/services/${id}/playground`, server);
    await say('hello');
    endless.token('half');
    await screen.findByText('half');
    unmount();
    expect(signal?.aborted).toBe(true);
  });
  it('tells what the service refuses, what breaks off, and what is not called', async () => {
    answer = () => json({ error: { message: 'The prompt is too long.' } }, 400);
    openPage(`/services/${id}/playground`, server);
    await say('hello');
    expect((await screen.findByRole('alert')).textContent).toContain('The service answers with 400');
    expect(screen.getByText('The prompt is too long.')).toBeDefined();
    const broken = stream();
    answer = () => of(200, 'text/event-stream', broken.body);
    await say('again');
    broken.token('half');
    await screen.findByText('half');
    broken.fail();
    expect(await screen.findByText('broke off before its end')).toBeDefined();
    answer = () => ({ status: 429, body: { title: 'Too many requests.', detail: 'Too many calls run at once.' } });
    await say('once more');
    expect(await screen.findByText('Too many calls run at once.')).toBeDefined();
    expect(screen.getByText('not called')).toBeDefined();
  });
  it('embeds texts where the models are for that', async () => {
    server.on(path, (body) => {
      const call = body as unknown as Call;
      if (call.path === '/v1/models') return json({ data: [{ id: 'tiny-embedding' }] });
      const vectors = (JSON.parse(call.body ?? '') as { input: string[] }).input.map((_, index) => [1, index]);
      return json({ data: vectors.map((embedding) => ({ embedding })) });
    });
    openPage(`/services/${id}/playground`, server);
    await userEvent.type(await screen.findByRole('textbox', { name: 'Texts' }), 'one\ntwo');
    await userEvent.click(screen.getByRole('button', { name: 'Send' }));
    expect(await screen.findByRole('cell', { name: '1.000' })).toBeDefined();
    expect(screen.getByRole('cell', { name: '0.707' })).toBeDefined();
    expect(calls().at(-1)).toEqual({
      method: 'POST',
      path: '/v1/embeddings',
      body: '{"model":"tiny-embedding","input":["one","two"]}',
    });
  });
  it('sends any request, shows its answer as text, and refuses a path that is none', async () => {
    answer = () => of(418, 'text/html', '<script>window.hacked=1</script>');
    openPage(`/services/${id}/playground?as=request`, server);
    const field = await screen.findByRole('textbox', { name: 'Path' });
    await userEvent.clear(field);
    await userEvent.type(field, '/a/../b');
    await userEvent.click(screen.getByRole('button', { name: 'Send' }));
    expect(field.getAttribute('aria-invalid')).toBe('true');
    expect(calls()).toHaveLength(1);
    await userEvent.clear(field);
    await userEvent.type(field, '/predict');
    await userEvent.selectOptions(screen.getByRole('combobox', { name: 'Method' }), 'POST');
    await userEvent.type(screen.getByRole('textbox', { name: 'Body' }), 'x=1');
    await userEvent.click(screen.getByRole('button', { name: 'Send' }));
    expect(await screen.findByText('<script>window.hacked=1</script>')).toBeDefined();
    expect(screen.getByText('418')).toBeDefined();
    expect(calls().at(-1)).toEqual({ method: 'POST', path: '/predict', body: 'x=1', content_type: 'application/json' });
  });
  it('says why a service cannot be called, and calls nothing', async () => {
    server.on(`GET /func/services/${id}`, () => ({ body: { ...details, service_endpoint: null } }));
    openPage(`/services/${id}/playground`, server);
    expect(await screen.findByText('The service cannot be called yet')).toBeDefined();
    expect(calls()).toHaveLength(0);
  });
  it('tells why the models are not known', async () => {
    server.on(path, () => ({ status: 403, body: { title: 'This operation is not allowed for you.' } }));
    openPage(`/services/${id}/playground`, server);
    expect((await screen.findByRole('alert')).textContent).toContain('not allowed for you');
    expect(screen.getByRole('combobox', { name: 'Call it as' })).toBeDefined();
  });
});
