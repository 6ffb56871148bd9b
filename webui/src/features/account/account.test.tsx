import { screen, waitFor, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { clientName, grouped } from './rules';

describe('grouped', () => {
  it.each([
    ['ABCDEFGHIJ', 'ABCD EFGH IJ'],
    ['ABCDEFGH', 'ABCD EFGH'],
    ['', ''],
  ])('%s', (key, text) => expect(grouped(key)).toBe(text));
});

describe('clientName', () => {
  const like = 'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)';
  it.each([
    [`${like} Chrome/150.0.0.0 Safari/537.36`, 'Chrome, Linux'],
    [`${like} Chrome/150.0.0.0 Safari/537.36 Edg/150.0.0.0`, 'Edge, Linux'],
    ['Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:140.0) Gecko/20100101 Firefox/140.0', 'Firefox, macOS'],
    ['Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 Chrome/150.0 Mobile Safari/537.36', 'Chrome, Android'],
    ['backend.ai-client/25 (Linux)', 'backend.ai-client/25'],
    ['', ''],
  ])('%s', (agent, name) => expect(clientName(agent)).toBe(name));
});

const off = { totp_activated: false, created_at: null, recovery_codes_left: 0 };
const on = { totp_activated: true, created_at: '2026-01-01T00:00:00Z', recovery_codes_left: 9 };
const wrong = {
  status: 401,
  body: {
    type: 'x/auth-failed',
    title: 'Not signed in.',
    detail: 'Invalid TOTP code provided',
    data: { otp: 'wrong' },
  },
};
const login = (session_id: string, is_current: boolean) => ({
  session_id,
  created_at: '2026-01-01T00:00:00Z',
  expires_at: '2036-01-01T00:00:00Z',
  address: '192.0.2.1',
  client: 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0',
  is_current,
});

let server: FakeServer;
let dotfiles: { path: string; permission: string; data: string }[];
let totp: typeof on | typeof off;
beforeEach(() => {
  server = new FakeServer();
  totp = off;
  dotfiles = [];
  server.on('GET /func/totp', () => ({ body: totp }));
  server.on('GET /func/auth/ssh-keypair', () => ({ body: { ssh_public_key: '' } }));
  server.on('GET /func/user-config/dotfiles', () => ({ body: dotfiles }));
  server.on('GET /func/user-config/bootstrap-script', () => ({ body: '' }));
  server.on('GET /func/auth/sign-ins', () => ({ body: { items: [], total_count: 0 } }));
  server.on('GET /server/login-sessions', () => ({ body: { items: [login('here', true)] } }));
});
const press = async (name: string | RegExp) => userEvent.click(await screen.findByRole('button', { name }));
const bodyOf = (key: string) => server.requests.findLast((request) => request.key === key)?.body;

describe('one-time passwords', () => {
  it('are set up by key and first code, and recovery codes are shown once', async () => {
    server.on('POST /func/totp', () => ({
      body: { totp_key: 'ABCDEFGH', totp_uri: 'otpauth://totp/x?secret=ABCDEFGH' },
    }));
    server.on('POST /func/totp/verify', ({ otp }) => {
      if (otp !== '123456') return wrong;
      totp = { ...on, recovery_codes_left: 2 };
      return { body: { recovery_codes: ['AAAA-BBBB', 'CCCC-DDDD'] } };
    });
    openPage('/account', server);
    await press('Set up one-time passwords');
    expect(await screen.findByText('ABCD EFGH')).toBeDefined();
    expect(screen.getByText('otpauth://totp/x?secret=ABCDEFGH')).toBeDefined();
    await userEvent.type(screen.getByLabelText('One-time password'), '000000');
    await press('Confirm');
    expect(await screen.findByText(/is wrong or was used before/)).toBeDefined();
    // A wrong code is no ended login.
    expect(screen.queryByText('Your login has ended')).toBeNull();
    await userEvent.clear(screen.getByLabelText('One-time password'));
    await userEvent.type(screen.getByLabelText('One-time password'), '123456');
    await press('Confirm');
    expect(await screen.findByText(/AAAA-BBBB\s+CCCC-DDDD/)).toBeDefined();
    expect(screen.queryByText('ABCD EFGH')).toBeNull();
    await press('I have kept them');
    expect(screen.queryByText(/AAAA-BBBB/)).toBeNull();
    expect(await screen.findByText('2 recovery codes are left.')).toBeDefined();
  });
  it('are removed by one of them, which goes in the body', async () => {
    totp = on;
    server.on('DELETE /func/totp', () => {
      totp = off;
      return { body: {} };
    });
    openPage('/account', server);
    await press('Remove one-time passwords');
    await userEvent.type(await screen.findByLabelText('One-time password'), ' 123456 ');
    await press('Remove one-time passwords');
    expect(await screen.findByRole('button', { name: 'Set up one-time passwords' })).toBeDefined();
    expect(bodyOf('DELETE /func/totp')).toEqual({ otp: '123456' });
  });
  it('tell why they cannot be read, alone', async () => {
    server.on('GET /func/totp', () => ({ status: 503, body: { title: 'The database is away.' } }));
    openPage('/account', server);
    const card = await screen.findByRole('region', { name: 'One-time passwords' });
    expect((await within(card).findByRole('alert')).textContent).toContain('The database is away.');
    expect(await screen.findByText('You have no SSH key.')).toBeDefined();
  });
});

describe('login sessions', () => {
  it('are listed, and another one is ended', async () => {
    const logins = [login('here', true), login('there', false)];
    server.on('GET /server/login-sessions', () => ({ body: { items: logins } }));
    server.on('DELETE /server/login-sessions/there', () => {
      logins.pop();
      return { body: {} };
    });
    openPage('/account', server);
    expect(await screen.findByText('this browser')).toBeDefined();
    await press('End: Firefox, Linux, 192.0.2.1');
    const dialog = await screen.findByRole('dialog');
    await userEvent.click(within(dialog).getByRole('button', { name: 'End' }));
    await waitFor(() => expect(screen.queryByRole('button', { name: /^End/ })).toBeNull());
  });
});

describe('the history of sign-ins', () => {
  it('tells outcomes by words, also one that this console does not know', async () => {
    const items = ['ok', 'auth-failed', 'new-outcome'].map((outcome, day) => ({
      at: `2026-01-0${day + 1}T00:00:00Z`,
      address: '192.0.2.9',
      method: 'corp',
      outcome,
    }));
    server.on('GET /func/user-config/dotfiles', () => ({ body: dotfiles }));
    server.on('GET /func/user-config/bootstrap-script', () => ({ body: '' }));
    server.on('GET /func/auth/sign-ins', () => ({ body: { items, total_count: 23 } }));
    openPage('/account?page=2', server);
    for (const text of ['signed in', 'refused', 'new-outcome']) expect(await screen.findByText(text)).toBeDefined();
    expect(screen.getAllByText('corp')).toHaveLength(3);
    await press('Page 3 of the sign-ins');
  });
});

describe('the keypair', () => {
  it('gets another secret after its consequences were told, and shows it', async () => {
    server.on('POST /func/auth/keypair/rotate', () => ({ body: { access_key: 'AKIATEST', secret_key: 'new-secret' } }));
    openPage('/account', server);
    await press('Make a new secret');
    const dialog = await screen.findByRole('dialog');
    expect(dialog.textContent).toContain('all your logins end');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Make a new secret' }));
    expect(await screen.findByText('new-secret')).toBeDefined();
  });
});

describe('the password', () => {
  it('that is wrong is told on the page, which is not an ended login', async () => {
    server.on('POST /func/auth/update-password', () => ({
      status: 401,
      body: { title: 'Not signed in.', detail: 'wrong' },
    }));
    openPage('/account', server);
    await userEvent.type(await screen.findByLabelText('Present password'), 'a');
    await userEvent.type(screen.getByLabelText('New password'), 'b');
    await press('Change the password');
    expect((await screen.findByRole('alert')).textContent).toContain('wrong');
    expect(screen.queryByText('Your login has ended')).toBeNull();
  });
});

describe('what sessions begin with', () => {
  it('is a dotfile that was refused first, then added and deleted', async () => {
    let tries = 0;
    server.on('POST /func/user-config/dotfiles', (body) => {
      tries += 1;
      if (tries === 1)
        return { status: 400, body: { type: 'x/invalid-api-params', title: 'Refused', data: { path: 'has no dot' } } };
      dotfiles = [body as (typeof dotfiles)[number]];
      return { body: {} };
    });
    server.on('DELETE /func/user-config/dotfiles', (_, request) => {
      expect(new URL(request.url).searchParams.get('path')).toBe('.bashrc');
      dotfiles = [];
      return { body: { success: true } };
    });
    openPage('/account', server);
    await press('Add a dotfile');
    await userEvent.type(screen.getByLabelText('Path'), '.bashrc');
    await userEvent.type(screen.getByLabelText('Content'), 'alias l=ls');
    await press('Save the dotfile');
    expect(await screen.findByText('has no dot')).toBeDefined();
    expect((screen.getByLabelText('Content') as HTMLTextAreaElement).value).toBe('alias l=ls');
    await press('Save the dotfile');
    await press('Delete .bashrc');
    await userEvent.click(await screen.findByRole('button', { name: 'Delete' }));
    await waitFor(() => expect(screen.queryByRole('button', { name: 'Delete .bashrc' })).toBeNull());
    expect(bodyOf('POST /func/user-config/dotfiles')).toEqual({
      path: '.bashrc',
      permission: '644',
      data: 'alias l=ls',
    });
  });
  it('is a script that is kept', async () => {
    server.on('POST /func/user-config/bootstrap-script', () => ({ body: {} }));
    openPage('/account', server);
    await userEvent.type(await screen.findByLabelText('Script'), 'echo hi');
    await press('Save the script');
    await waitFor(() => expect(bodyOf('POST /func/user-config/bootstrap-script')).toEqual({ script: 'echo hi' }));
  });
});
