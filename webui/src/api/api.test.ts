import { beforeEach, describe, expect, it } from 'vitest';
import { FakeServer } from '../testing/server';
import { markAttendance } from './attendance';
import { readBoot } from './boot';
import { rest } from './client';
import { eventFrom } from './events';
import { expiry } from './expiry';
import { filterOf, slotsOf } from './filters';
import { graphql, mutate, query } from './graphql';
import { signIn } from './login';
import { prefixOf } from './prefix';
import { Problem, problemFrom } from './problems';

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
  server.install();
});

describe('markAttendance', () => {
  const marked = (now: number) => {
    const headers = new Headers();
    markAttendance(headers, now);
    return headers.has('X-BackendAI-Unattended');
  };
  it('marks requests after a minute without a touch', () => {
    window.dispatchEvent(new Event('keydown'));
    expect(marked(Date.now())).toBe(false);
    expect(marked(Date.now() + 61_000)).toBe(true);
  });
});

describe('prefixOf', () => {
  it.each([
    ['/', '/'],
    ['/console/', '/console/'],
    ['/console/index.html', '/console/'],
    ['__BACKENDAI_PREFIX__', '/'],
    [null, '/'],
  ])('of %s is %s', (base, path) => expect(prefixOf(base, 'http://site')).toBe(path));
});

describe('readBoot', () => {
  it('keeps defaults for what is absent', () =>
    expect(readBoot('{"language":"ko"}')).toMatchObject({ language: 'ko', siteName: 'Backend.AI' }));
  it.each([null, '__BACKENDAI_BOOT__', '7', '[', 'null'])('survives %s', (text) =>
    expect(readBoot(text).features).toEqual({}),
  );
});

describe('problemFrom', () => {
  it('reads a problem document', () => {
    const problem = problemFrom(
      400,
      {
        type: 'https://api.backend.ai/probs/invalid-api-params',
        title: 'Bad',
        detail: 'name',
        data: { name: 'short', n: 3 },
        request_id: 'r1',
      },
      new Headers({ 'Retry-After': '7' }),
    );
    expect(problem).toMatchObject({
      code: 'invalid-api-params',
      title: 'Bad',
      status: 400,
      requestId: 'r1',
      fields: { name: 'short' },
      retryAfter: 7,
    });
  });
  it.each([null, 'text', { title: 3 }])('survives a body %s', (body) =>
    expect(problemFrom(502, body).title).toBe('HTTP 502'),
  );
});

describe('send', () => {
  it('repeats a read after the next login', async () => {
    let isLoggedIn = false;
    server.on('GET /func/manager/announcement', () =>
      isLoggedIn ? { body: { enabled: true, message: 'hello' } } : { status: 401, body: { title: 'no login' } },
    );
    const reply = rest.GET('/manager/announcement', {});
    await expect.poll(() => expiry.isExpired()).toBe(true);
    isLoggedIn = true;
    expiry.settle();
    expect((await reply).data?.message).toBe('hello');
  });
  it.each([true, false])('does not repeat a write, with a login: %s', async (authenticated) => {
    const data = authenticated ? { access_key: 'AKIATEST', role: 'user' } : null;
    server.on('POST /server/login-check', () => ({ body: { authenticated, data } }));
    server.on('PATCH /func/auth/ssh-keypair', () => ({ status: 401, body: { title: 'no login' } }));
    await expect(rest.PATCH('/auth/ssh-keypair', {})).rejects.toMatchObject({ status: 401 });
    expect(expiry.isExpired()).toBe(!authenticated);
    expiry.settle();
    expect(server.requests.filter(({ key }) => key.startsWith('PATCH'))).toHaveLength(1);
  });
});

describe('graphql', () => {
  const document = graphql('query { user { email } }');
  it('returns the data', async () => expect((await query(document, {})).user?.email).toBe('ann@example.com'));
  it('throws the first error', async () => {
    server.on('gql user', () => ({
      body: { data: null, errors: [{ message: 'no', extensions: { type: 'x/forbidden', status: 403 } }] },
    }));
    await expect(query(document, {})).rejects.toMatchObject({ title: 'no', status: 403, code: 'forbidden' });
  });
  it('throws for a reply that is cut off', async () => {
    server.on('gql user', () => ({ body: undefined }));
    await expect(query(document, {})).rejects.toBeInstanceOf(Problem);
  });
  it('tells the fields of a refused change', async () => {
    server.on('gql user', () => ({
      body: {
        data: { user: { ok: false, msg: 'taken already' } },
        extensions: { problems: { user: { type: 'x/conflict', status: 409, data: { email: 'taken', count: 3 } } } },
      },
    }));
    await expect(mutate(document, {})).rejects.toMatchObject({
      title: 'taken already',
      code: 'conflict',
      status: 409,
      fields: { email: 'taken' },
    });
  });
  it('takes ok false for a refusal', async () => {
    server.graphql('delete_domain', () => ({ delete_domain: { ok: false, msg: 'It has users.' } }));
    await expect(mutate(graphql('mutation { delete_domain(name: "lab") { ok msg } }'), {})).rejects.toMatchObject({
      title: 'It has users.',
    });
  });
});

describe('signIn', () => {
  it('throws the refusal that comes with status 200', async () => {
    server.on('POST /server/login', () => ({
      body: { authenticated: false, data: { type: 'x/auth-failed', title: 'no', details: 'OTP not provided' } },
    }));
    await expect(signIn({ username: 'a', password: 'b' })).rejects.toMatchObject({
      status: 401,
      detail: 'OTP not provided',
    });
  });
  it('throws 502 of a web server without a manager', async () => {
    server.on('POST /server/login', () => ({ status: 502, body: { authenticated: false, data: { title: 'away' } } }));
    await expect(signIn({ username: 'a', password: 'b' })).rejects.toMatchObject({ status: 502, title: 'away' });
  });
});

describe('filterOf', () => {
  it.each([
    ['', null],
    ['  train ', 'name ilike "%train%"'],
    ['a"b%\\c', 'name ilike "%abc%"'],
    ['status == "RUNNING"', 'status == "RUNNING"'],
    ['isolated', 'name ilike "%isolated%"'],
    ['sign-in-test', 'name ilike "%sign-in-test%"'],
    ['in@example.com', 'name ilike "%in@example.com%"'],
    ['log-in-', 'name ilike "%log-in-%"'],
    ['what is new', 'name ilike "%what is new%"'],
    ['a -> b', 'name ilike "%a -> b%"'],
    ['(status in ["RUNNING"] | result is null)', '(status in ["RUNNING"] | result is null)'],
    ['name ILIKE "%in%"', 'name ILIKE "%in%"'],
    ["cluster_size>1 & name like '%x'", "cluster_size>1 & name like '%x'"],
  ])('of %s', (text, filter) => expect(filterOf('name', text)).toBe(filter));
});

describe('slotsOf', () => {
  it('leaves out zeros', () =>
    expect(slotsOf('{"cpu":"2","mem":0,"cuda.shares":"0.5"}')).toEqual({ cpu: '2', 'cuda.shares': '0.5' }));
  it.each([null, '', '{', '3'])('survives %s', (text) => expect(slotsOf(text)).toEqual({}));
});

describe('eventFrom', () => {
  it('reads an event', () =>
    expect(eventFrom('session_started', '7', '{"sessionId":"s","reason":"x"}')).toMatchObject({
      id: '7',
      sessionId: 's',
    }));
  it.each(['', 'x', '{}', '{"sessionId":3}'])('ignores %s', (text) =>
    expect(eventFrom('session_started', '7', text)).toBeNull(),
  );
});
