import { screen, waitFor, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { afterAll, beforeEach, describe, expect, it, vi } from 'vitest';
import { expiry } from '../api/expiry';
import { installStyleNonce } from '../api/nonce';
import { onForget } from '../api/personal';
import { openPage } from '../testing/render';
import { FakeServer } from '../testing/server';
import { quotasOf } from './home/rules';
import { destinationsFor } from './navigation';

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
});

describe('quotasOf', () => {
  it('takes the tightest limit', () =>
    expect(
      quotasOf({ cpu: '2' }, [
        { cpu: 'Infinity', mem: '5' },
        { cpu: '6', mem: 'Infinity' },
      ]),
    ).toEqual([
      { slot: 'cpu', used: 2, limit: 8 },
      { slot: 'mem', used: 0, limit: 5 },
    ]));
  it('has no limit where nobody sets one', () =>
    expect(quotasOf({ cpu: '2' }, [{ cpu: 'Infinity' }])[0]?.limit).toBe(Number.POSITIVE_INFINITY));
});

describe('navigation', () => {
  it('hides pages of administrators from users', () => {
    expect(destinationsFor('user').every(({ group }) => group === 'work')).toBe(true);
    expect(destinationsFor('superadmin').some(({ path }) => path === '/system')).toBe(true);
  });
});

describe('installStyleNonce', () => {
  it('gives style elements the nonce and others none', () => {
    const original = document.createElement;
    try {
      installStyleNonce('n1');
      expect(document.createElement('style').getAttribute('nonce')).toBe('n1');
      expect(document.createElement('div').hasAttribute('nonce')).toBe(false);
    } finally {
      document.createElement = original;
    }
  });
});

describe('the shell', () => {
  it('says 403 where a role may not look, and asks nobody', async () => {
    openPage('/people', server);
    expect(await screen.findByText(/Your role is user/)).toBeDefined();
    expect(server.requests.some(({ key }) => key === 'gql user_list')).toBe(false);
  });
  it('keeps its navigation around an unknown address', async () => {
    openPage('/nowhere', server);
    expect(await screen.findByText('There is no such page')).toBeDefined();
    expect(screen.getByRole('link', { name: 'Sessions' })).toBeDefined();
  });
  it('announces a frozen installation and a message, which stays dismissed until there is another', async () => {
    let message = '<b>Closed</b> on Sunday';
    server.on('GET /func/manager/status', () => ({ body: { status: 'frozen', active_sessions: 0, nodes: [] } }));
    server.on('GET /func/manager/announcement', () => ({
      body: { enabled: true, message },
    }));
    const page = openPage('/nowhere', server);
    expect(await screen.findByText('The installation is frozen')).toBeDefined();
    expect(await screen.findByText('<b>Closed</b> on Sunday')).toBeDefined();
    await userEvent.click(screen.getByRole('button', { name: 'Dismiss' }));
    expect(screen.queryByText('<b>Closed</b> on Sunday')).toBeNull();
    page.unmount();
    const later = openPage('/nowhere', server);
    expect(await screen.findByText('The installation is frozen')).toBeDefined();
    expect(screen.queryByText('<b>Closed</b> on Sunday')).toBeNull();
    later.unmount();
    message = 'Open again';
    openPage('/nowhere', server);
    expect(await screen.findByText('Open again')).toBeDefined();
  });
  it('asks for the password over the page when the login has ended', async () => {
    let isLoggedIn = false;
    server.graphql('images', () => ({ images: [] }));
    server.on('POST /server/login', () => {
      isLoggedIn = true;
      return { body: { authenticated: true, data: { access_key: 'AKIATEST', role: 'user' } } };
    });
    server.on('gql images', () =>
      isLoggedIn ? { body: { data: { images: [] } } } : { status: 401, body: { title: 'no login' } },
    );
    openPage('/images', server);
    await screen.findByText('Your login has ended');
    await userEvent.type(screen.getByLabelText('Password'), 'secret');
    await userEvent.click(screen.getByRole('button', { name: 'Log in' }));
    expect(await screen.findByText('There are no images')).toBeDefined();
  });
  describe('beside another tab', () => {
    const tab = new BroadcastChannel('backendai-login');
    afterAll(() => tab.close());

    it('reports its login', async () => {
      const reported = new Promise((resolve) => {
        tab.addEventListener('message', ({ data }) => resolve(data), { once: true });
      });
      openPage('/nowhere', server);
      expect(await reported).toBe('AKIATEST');
    });
    it('goes on when the same person logs in there, and starts anew when another does', async () => {
      const reload = vi.spyOn(window.location, 'reload').mockImplementation(() => undefined);
      openPage('/nowhere', server);
      await screen.findByText('There is no such page');
      expiry.report();
      tab.postMessage('AKIATEST');
      await waitFor(() => expect(expiry.isExpired()).toBe(false));
      expect(reload).not.toHaveBeenCalled();
      tab.postMessage('AKIAOTHER');
      await waitFor(() => expect(reload).toHaveBeenCalledTimes(1));
    });
  });
  it('does not ask again after a login on the page of its own', async () => {
    const { router, client } = openPage('/nowhere', server);
    await screen.findByText('There is no such page');
    expiry.report();
    await router.navigate({ to: '/login', search: {} });
    client.clear();
    await router.navigate({ to: '/elsewhere' as '/' });
    await waitFor(() => expect(expiry.isExpired()).toBe(false));
  });
});

describe('addresses', () => {
  it.each([
    ['/account?page=2.5', { page: 2 }],
    ['/claims?page=1e300', { page: 1_000_000 }],
    ['/system/errors?page=0', {}],
    ['/queue?page=x', {}],
  ])('%s', async (path, search) => {
    const { router } = openPage(path, server);
    await waitFor(() => expect(router.state.matches.at(-1)?.search).toEqual(search));
  });
  it('has a title where a project cannot be read', async () => {
    server.on('gql group', () => ({ status: 400, body: { title: 'not a UUID' } }));
    openPage('/projects/zz', server);
    expect(await screen.findByText('not a UUID')).toBeDefined();
    expect(screen.getByRole('heading', { level: 1, name: 'Project' })).toBeDefined();
  });
});

describe('logging out', () => {
  it('says that it failed, and goes with what modules keep once it succeeds', async () => {
    let isAway = true;
    const clean = vi.fn();
    onForget(clean);
    server.on('POST /server/logout', () => (isAway ? { status: 503, body: { title: 'It is away.' } } : { body: {} }));
    const { router } = openPage('/nowhere', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Your menu' }));
    await userEvent.click(await screen.findByRole('menuitem', { name: 'Log out everywhere' }));
    const dialog = await screen.findByRole('dialog', { name: 'You are still logged in' });
    expect(within(dialog).getByText('It is away.')).toBeDefined();
    expect([router.state.location.pathname, clean.mock.calls.length]).toEqual(['/nowhere', 0]);
    isAway = false;
    await userEvent.click(within(dialog).getByRole('button', { name: 'Log out everywhere' }));
    await expect.poll(() => router.state.location.pathname).toBe('/login');
    expect(clean).toHaveBeenCalledTimes(1);
    const sent = server.requests.filter(({ key }) => key === 'POST /server/logout').map(({ body }) => body);
    expect(sent).toEqual([{ everywhere: true }, { everywhere: true }]);
  });
});

describe('home', () => {
  it('tells what runs, what waits and why, and what is free', async () => {
    server.graphql('compute_session_list', ({ status }) => ({
      compute_session_list: String(status).startsWith('RUNNING')
        ? { total_count: 0, items: [] }
        : {
            total_count: 1,
            items: [
              {
                id: 'w',
                name: 'big',
                status: 'PENDING',
                status_data: '{"scheduler":{"reason":"insufficient-resource","message":"needs 2"}}',
                created_at: '2026-01-01T00:00:00Z',
              },
            ],
          },
    }));
    server.on('POST /func/resource/check-presets', () => ({
      body: {
        keypair_using: { cpu: '1' },
        keypair_remaining: { cpu: '3' },
        group_remaining: { cpu: 'Infinity' },
        domain_remaining: {},
        scaling_groups: { default: { using: {}, remaining: { cpu: '7' } } },
        presets: [],
      },
    }));
    openPage('/', server);
    expect(await screen.findByText('None of your sessions runs.')).toBeDefined();
    expect(await screen.findByText('needs 2')).toBeDefined();
    expect(await screen.findByText('1 / 4')).toBeDefined();
  });
});
