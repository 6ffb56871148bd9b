import { screen, waitFor } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { describe, expect, it } from 'vitest';
import { Problem } from '../../api/problems';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { refusalOf, safeNext, tokenOf } from './rules';

describe('safeNext', () => {
  it.each([
    ['/sessions?q=a', '/sessions?q=a'],
    ['//evil.example', '/'],
    ['/\\evil.example', '/'],
    ['/\t/evil.example', '/'],
    ['https://evil.example', '/'],
    ['javascript:alert(1)', '/'],
    ['/login?next=/login', '/'],
    ['/token-login', '/'],
    [undefined, '/'],
  ])('%s', (next, path) => expect(safeNext(next)).toBe(path));
});

describe('tokenOf', () => {
  it.each([
    ['?sToken=a.b.c', '', 'a.b.c'],
    ['?token=a&next=/x', '', 'a'],
    ['?token=seen', '#sToken=hidden', 'hidden'],
    ['?next=/x', '#top', ''],
    ['', '', ''],
  ])('%s %s', (search, hash, token) => expect(tokenOf(search, hash)).toBe(token));
});

describe('refusalOf', () => {
  it.each([
    [429, '', 'blocked'],
    [401, 'OTP not provided', 'otp'],
    [401, 'You must register Two-Factor Authentication.', 'register'],
    [401, 'The password must be changed first.', 'expired-password'],
    [401, 'Password expired on 2026-01-01', 'expired-password'],
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
  it('registers one-time passwords where they are demanded', async () => {
    const server = serverOf(({ otp }) =>
      otp === undefined
        ? {
            body: {
              authenticated: false,
              data: {
                title: 'no',
                details: 'You must register Two-Factor Authentication.',
                two_factor_registration_token: 'a.b.c',
              },
            },
          }
        : accepted,
    );
    server.on('POST /func/totp/anon', ({ registration_token: token }) => ({
      body: { totp_key: 'ABCDEFGH', totp_uri: `otpauth://totp/${String(token)}` },
    }));
    server.on('POST /func/totp/anon/verify', ({ otp }) =>
      otp === '123456'
        ? { body: { recovery_codes: ['one-code', 'two-code'] } }
        : { status: 401, body: { title: 'no', data: { otp: 'wrong' } } },
    );
    await fill('/login', server);
    expect(await screen.findByText('ABCD EFGH')).toBeDefined();
    const field = screen.getByLabelText('One-time password');
    await userEvent.type(field, '000000');
    await userEvent.click(screen.getByRole('button', { name: 'Confirm' }));
    await screen.findByText(/This one-time password is wrong/);
    await userEvent.clear(field);
    await userEvent.type(field, '123456');
    await userEvent.click(screen.getByRole('button', { name: 'Confirm' }));
    await screen.findByText(/two-code/);
    await userEvent.click(screen.getByRole('button', { name: /I have kept them/ }));
    expect(await screen.findByLabelText('Password')).toBeDefined();
    expect(screen.getByLabelText('One-time password')).toBeDefined();
  });

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
  it('asks for two one-time passwords where an expired password takes one', async () => {
    const server = serverOf(({ password, otp }) => {
      if (password !== 'newer-secret') return refused('Password expired on 2026-01-01');
      return otp === '222222' ? accepted : refused('Invalid TOTP code provided');
    });
    server.on('POST /server/update-password-no-auth', ({ otp }) =>
      otp === '111111' ? { body: {} } : { status: 401, body: { title: 'no', detail: 'OTP not provided' } },
    );
    server.graphql('images', () => ({ images: [] }));
    await fill('/login?next=/images', server);
    const submit = () => userEvent.click(screen.getByRole('button', { name: 'Log in' }));
    await userEvent.type(await screen.findByLabelText('New password'), 'newer-secret');
    await submit();
    await userEvent.type(await screen.findByLabelText('One-time password'), '111111');
    await submit();
    await screen.findByText(/Log in with the next one-time password/);
    await userEvent.type(screen.getByLabelText('One-time password'), '222222');
    await submit();
    await screen.findByText('There are no images');
  });
  it('tells at its field why a new password is not taken', async () => {
    const server = serverOf(() => refused('The password must be changed first.'));
    server.on('POST /server/update-password-no-auth', () => ({
      status: 400,
      body: { title: 'Bad', detail: 'A password has 8 characters or more.', data: { password: 'its length' } },
    }));
    await fill('/login', server);
    await userEvent.type(await screen.findByLabelText('New password'), 'short');
    await userEvent.click(screen.getByRole('button', { name: 'Log in' }));
    expect(await screen.findByText('A password has 8 characters or more.')).toBeDefined();
    expect(screen.queryByRole('alert')).toBeNull();
  });
  it('leads to the sign-on of the site, and from there to the page that was asked for', async () => {
    const server = serverOf(() => refused('wrong'));
    server.on('GET /server/sso', () => ({ body: { providers: ['corp', 'a/b', 3] } }));
    openPage('/login?next=/images', server);
    const link = await screen.findByRole('link', { name: 'Log in with corp' });
    expect(link.getAttribute('href')).toMatch(/\/server\/sso\/corp\/login\?next=%2Fimages$/);
    expect(screen.getByRole('link', { name: 'Log in with a/b' }).getAttribute('href')).toContain('/sso/a%2Fb/login');
    expect(screen.queryByRole('link', { name: /3/ })).toBeNull();
  });
  it('is complete where the site has no sign-on', async () => {
    openPage(
      '/login',
      serverOf(() => refused('wrong')),
    );
    await screen.findByLabelText('E-mail address');
    expect(screen.queryByRole('link')).toBeNull();
  });
});

describe('the page of a token of another site', () => {
  const open = async (server: FakeServer, path = '/token-login?sToken=a.b.c&next=%2Fusage') => {
    window.history.replaceState(null, '', path);
    const page = openPage(path, server);
    return { ...page, button: await screen.findByRole('button', { name: 'Log in' }) };
  };
  const tokens = (server: FakeServer) =>
    server.requests.filter(({ key }) => key === 'POST /server/token-login').map(({ body }) => body);

  it('logs in when somebody says so, and keeps no token in the address', async () => {
    const server = serverOf(() => accepted);
    server.on('POST /server/token-login', () => accepted);
    const { router, button } = await open(server);
    await waitFor(() => expect(window.location.href).not.toContain('a.b.c'));
    expect(tokens(server)).toEqual([]);
    await userEvent.click(button);
    await waitFor(() => expect(router.state.location.pathname).toBe('/usage'));
    expect(tokens(server)).toEqual([{ token: 'a.b.c' }]);
    expect(router.state.location.href).not.toContain('a.b.c');
  });

  it('leads to no other site', async () => {
    const server = serverOf(() => accepted);
    server.on('POST /server/token-login', () => accepted);
    const { router, button } = await open(server, '/token-login?sToken=a&next=%2F%2Fevil.example');
    await userEvent.click(button);
    await waitFor(() => expect(router.state.location.pathname).toBe('/'));
  });

  it('says why a token is refused, and does not send it again', async () => {
    const server = serverOf(() => accepted);
    server.on('POST /server/token-login', () => refused('That token signs nobody in.'));
    const { button } = await open(server);
    await userEvent.click(button);
    expect(await screen.findByText('That token signs nobody in.')).toBeTruthy();
    expect(button.hasAttribute('disabled')).toBe(true);
    expect(screen.getByRole('link', { name: /by password/ })).toBeTruthy();
  });

  it('sends none where it lies in a cookie', async () => {
    const server = serverOf(() => accepted);
    server.on('POST /server/token-login', () => accepted);
    const { button } = await open(server, '/token-login');
    await userEvent.click(button);
    await waitFor(() => expect(tokens(server)).toEqual([{}]));
  });
});
