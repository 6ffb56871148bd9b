import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { mayRemove, rightsOf } from './rules';

describe('rightsOf', () => {
  it.each([
    ['user', false, { sees: false, changes: false, appoints: false }],
    ['user', true, { sees: true, changes: true, appoints: false }],
    ['monitor', false, { sees: true, changes: false, appoints: false }],
    ['admin', false, { sees: true, changes: true, appoints: true }],
    ['superadmin', false, { sees: true, changes: true, appoints: true }],
  ] as const)('%s, administrates it: %s', (role, isMine, rights) => expect(rightsOf(role, isMine)).toEqual(rights));
});

describe('mayRemove', () => {
  const own = rightsOf('user', true);
  it('spares other administrators of the project', () => {
    expect(mayRemove(own, { isAdmin: true }, false)).toBe(false);
    expect(mayRemove(own, { isAdmin: false }, false)).toBe(true);
    expect(mayRemove(own, { isAdmin: true }, true)).toBe(true);
    expect(mayRemove(rightsOf('admin', false), { isAdmin: true }, false)).toBe(true);
    expect(mayRemove(rightsOf('monitor', false), { isAdmin: false }, false)).toBe(false);
  });
});

let server: FakeServer;
let admins: string[];
const loginAs = (role: string) =>
  server.on('POST /server/login-check', () => ({
    body: { authenticated: true, data: { access_key: 'AKIATEST', role } },
  }));
const changes = () => server.requests.filter(({ key }) => key === 'gql modify_group').map(({ body }) => body.variables);

beforeEach(() => {
  server = new FakeServer();
  admins = [];
  const project = () => ({ id: 'g', name: 'team', domain_name: 'default', is_active: true, type: 'GENERAL', admins });
  server.graphql('groups', () => ({ groups: [project()] }));
  server.graphql('group', () => ({ group: project() }));
  server.graphql('modify_group', () => ({ modify_group: { ok: true, msg: '' } }));
  server.graphql('group_member_list', (variables) =>
    'member' in variables
      ? { group_member_list: { items: [{ live_sessions: 3 }] }, vfolder_list: { total_count: 2 } }
      : {
          group_member_list: {
            total_count: 2,
            items: [
              { uuid: 'u', email: 'ann@example.com', status: 'active', is_admin: admins.includes('u') },
              { uuid: 'b', email: 'bob@example.com', status: 'active', is_admin: admins.includes('b') },
            ],
          },
        },
  );
});

describe('the list of projects', () => {
  it('says which of their projects somebody administrates', async () => {
    admins = ['u'];
    openPage('/projects', server);
    const row = within(await screen.findByRole('table')).getByRole('row', { name: /team/ });
    expect(row.textContent).toContain('You administrate it');
  });
});

describe('a project', () => {
  it('asks for no members whom it may not show', async () => {
    openPage('/projects/g', server);
    expect(await screen.findByText(/shown to those who administrate it/)).toBeDefined();
    expect(server.requests.some(({ key }) => key === 'gql group_member_list')).toBe(false);
  });

  it('lets its administrator add people by address', async () => {
    admins = ['u'];
    openPage('/projects/g', server);
    const field = await screen.findByLabelText('E-mail addresses');
    await userEvent.type(field, 'eve');
    await userEvent.click(screen.getByRole('button', { name: 'Add' }));
    expect(await screen.findByText(/no e-mail addresses: eve/)).toBeDefined();
    expect(changes()).toEqual([]);
    await userEvent.type(field, '@example.com, carl@example.com');
    await userEvent.click(screen.getByRole('button', { name: 'Add' }));
    expect(await screen.findByText('2 people are in the project now')).toBeDefined();
    expect(changes()).toEqual([{ id: 'g', mode: 'add', uuids: [], emails: ['eve@example.com', 'carl@example.com'] }]);
    expect(screen.queryByRole('button', { name: /Make administrator/ })).toBeNull();
  });

  it('says what somebody loses before the removal', async () => {
    admins = ['u'];
    openPage('/projects/g', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Remove bob@example.com' }));
    const dialog = await screen.findByRole('dialog');
    expect(await within(dialog).findByText('3 live sessions go on until they end')).toBeDefined();
    expect(within(dialog).getByText('2 folders of the project are no longer seen or mounted')).toBeDefined();
    expect(changes()).toEqual([]);
    await userEvent.click(within(dialog).getByRole('button', { name: 'Remove' }));
    await expect.poll(changes).toEqual([{ id: 'g', mode: 'remove', uuids: ['b'], emails: [] }]);
  });

  it('keeps the dialog with the reason when the manager refuses', async () => {
    admins = ['u'];
    server.graphql('modify_group', () => ({ modify_group: { ok: false, msg: 'Not that one.' } }));
    openPage('/projects/g', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Remove bob@example.com' }));
    const dialog = await screen.findByRole('dialog');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Remove' }));
    expect((await within(dialog).findByRole('alert')).textContent).toContain('Not that one.');
  });

  it('lets administrators of the domain appoint and dismiss', async () => {
    loginAs('admin');
    admins = ['b'];
    openPage('/projects/g', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Make administrator: ann@example.com' }));
    const dialog = await screen.findByRole('dialog');
    expect(dialog.textContent).toContain('may then let people in and out of team');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Make administrator' }));
    await expect.poll(changes).toEqual([{ id: 'g', mode: 'add-admins', uuids: ['u'], emails: [] }]);
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    await userEvent.click(await screen.findByRole('button', { name: 'Make plain member: bob@example.com' }));
    const second = await screen.findByRole('dialog');
    await userEvent.click(within(second).getByRole('button', { name: 'Make plain member' }));
    await expect.poll(() => changes().at(-1)).toEqual({ id: 'g', mode: 'remove-admins', uuids: ['b'], emails: [] });
  });

  it('says that a project is not there', async () => {
    server.graphql('group', () => ({ group: null }));
    openPage('/projects/g', server);
    expect(await screen.findByText('There is no such project')).toBeDefined();
  });
});
