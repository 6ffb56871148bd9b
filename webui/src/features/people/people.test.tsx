import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { limitOf } from './rules';

describe('limitOf', () => {
  it.each([
    [0, Number.POSITIVE_INFINITY],
    [-1, Number.POSITIVE_INFINITY],
    [null, Number.POSITIVE_INFINITY],
    [7, 7],
  ])('%s', (value, limit) => expect(limitOf(value)).toBe(limit));
});

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
  server.graphql('user_list', () => ({
    user_list: {
      total_count: 1,
      items: [{ uuid: 'u1', email: 'bob@example.com', role: 'user', status: 'active', groups: [] }],
    },
  }));
});
const loginAs = (role: string) =>
  server.on('POST /server/login-check', () => ({
    body: { authenticated: true, data: { access_key: 'AKIATEST', role } },
  }));

describe('the list of users', () => {
  it('lets administrators deactivate somebody, and says what that means', async () => {
    loginAs('superadmin');
    server.graphql('modify_user', () => ({ modify_user: { ok: true, msg: '' } }));
    openPage('/people', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Deactivate bob@example.com' }));
    const dialog = await screen.findByRole('dialog');
    expect(dialog.textContent).toContain('can no longer sign in');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Deactivate' }));
    await expect
      .poll(() => server.requests.find(({ key }) => key === 'gql modify_user')?.body.variables)
      .toEqual({
        email: 'bob@example.com',
        status: 'inactive',
      });
  });
  it('keeps the dialog with the reason when the manager refuses', async () => {
    loginAs('superadmin');
    server.graphql('modify_user', () => ({ modify_user: { ok: false, msg: 'The last superadmin stays.' } }));
    openPage('/people', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Deactivate bob@example.com' }));
    const dialog = await screen.findByRole('dialog');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Deactivate' }));
    expect((await within(dialog).findByRole('alert')).textContent).toContain('The last superadmin stays.');
  });
  it('offers monitors nothing to change', async () => {
    loginAs('monitor');
    openPage('/people', server);
    expect(await screen.findByText('bob@example.com')).toBeDefined();
    expect(screen.queryByRole('button', { name: /Deactivate/ })).toBeNull();
  });
});
