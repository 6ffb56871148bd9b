import { screen, waitFor } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { describe, expect, it } from 'vitest';
import { Problem } from '../../api/problems';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { refusalOf, safeNext } from './rules';

describe('safeNext', () => {
  it.each([
    ['/sessions?q=a', '/sessions?q=a'],
    ['//evil.example', '/'],
    ['/\\evil.example', '/'],
    ['/\t/evil.example', '/'],
    ['https://evil.example', '/'],
    ['javascript:alert(1)', '/'],
    ['/login?next=/login', '/'],
    [undefined, '/'],
  ])('%s', (next, path) => expect(safeNext(next)).toBe(path));
});

describe('refusalOf', () => {
  it.each([
    [429, '', 'blocked'],
    [401, 'OTP not provided', 'otp'],
    [401, 'The password must be changed first.', 'expired-password'],
    [401, 'wrong', 'wrong'],
    [502, '', 'other'],
  ] as const)('%d %s', (status, detail, refusal) =>
    expect(refusalOf(new Problem({ title: 'x', status, detail }))).toBe(refusal),
  );
});

function serverOf(
  reply: (body: Record<string, unknown>) => { status?: number; body: unknown; headers?: Record<string, string> },
): FakeServer {
  const server = new FakeServer();
  server.on('POST /server/login-check', () => ({ body: { authenticated: false, data: null } }));
  server.on('POST /server/login', reply);
  return server;
}
const accepted = { body: { authenticated: true, data: { access_key: 'AKIATEST', role: 'user' } } };
const refused = (details: string) => ({ body: { authenticated: false, data: { title: 'no', details } } });

async function fill(path: string, server: FakeServer) {
  const page = openPage(path, server);
  await userEvent.type(await screen.findByLabelText('E-mail address'), 'ann@example.com');
  await userEvent.type(screen.getByLabelText('Password'), 'secret');
  await userEvent.click(screen.getByRole('button', { name: 'Log in' }));
  return page;
}

describe('the login page', () => {
  it('leads to the page that was asked for', async () => {
    const server = serverOf(() => accepted);
    server.graphql('images', () => ({ images: [] }));
    const { router } = await fill('/images', server);
    await screen.findByText('There are no images');
    expect(router.state.location.pathname).toBe('/images');
  });
  it('tells a wrong password and keeps the name', async () => {
    await fill(
      '/login',
      serverOf(() => refused('wrong')),
    );
    expect((await screen.findByRole('alert')).textContent).toContain('is wrong');
    expect(screen.getByLabelText<HTMLInputElement>('E-mail address').value).toBe('ann@example.com');
  });
  it('asks for a one-time password when the manager does', async () => {
    const server = serverOf((body) => (body.otp === '123456' ? accepted : refused('OTP not provided')));
    server.graphql('compute_session_list', () => ({ compute_session_list: { total_count: 0, items: [] } }));
    const { router } = await fill('/login?next=/sessions', server);
    await userEvent.type(await screen.findByLabelText('One-time password'), '123456');
    await userEvent.click(screen.getByRole('button', { name: 'Log in' }));
    await waitFor(() => expect(router.state.location.pathname).toBe('/sessions'));
  });
  it('says how long a blocked person has to wait', async () => {
    await fill(
      '/login',
      serverOf(() => ({ status: 429, body: { title: 'Too many requests.' }, headers: { 'Retry-After': '60' } })),
    );
    expect((await screen.findByRole('alert')).textContent).toContain('60 seconds');
    expect(screen.getByRole<HTMLButtonElement>('button', { name: 'Log in' }).disabled).toBe(true);
  });
  it('changes a password that has expired', async () => {
    const server = serverOf((body) =>
      body.password === 'newer-secret' ? accepted : refused('The password must be changed first.'),
    );
    server.on('POST /server/update-password-no-auth', () => ({ body: {} }));
    server.graphql('images', () => ({ images: [] }));
    await fill('/login?next=/images', server);
    await userEvent.type(await screen.findByLabelText('New password'), 'newer-secret');
    await userEvent.click(screen.getByRole('button', { name: 'Log in' }));
    await screen.findByText('There are no images');
    expect(server.requests.find(({ key }) => key.endsWith('no-auth'))?.body).toEqual({
      username: 'ann@example.com',
      current_password: 'secret',
      new_password: 'newer-secret',
    });
  });
});
