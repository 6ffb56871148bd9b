import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { Problem } from '../../api/problems';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { limitOf, placesOf, rolesFor } from './rules';

describe('limitOf', () => {
  it.each([
    [0, Number.POSITIVE_INFINITY],
    [-1, Number.POSITIVE_INFINITY],
    [null, Number.POSITIVE_INFINITY],
    [7, 7],
  ])('%s', (value, limit) => expect(limitOf(value)).toBe(limit));
});

describe('placesOf', () => {
  const problem = (fields: Record<string, string>) => new Problem({ title: 'taken', status: 409, fields });
  it.each([
    [null, {}, true],
    [problem({ email: 'taken' }), { email: 'taken' }, true],
    [problem({ elsewhere: 'x' }), {}, false],
    [problem({}), {}, false],
  ])('%s', (refusal, errors, isPlaced) => expect(placesOf(refusal, ['email', 'role'])).toEqual({ errors, isPlaced }));
});

describe('rolesFor', () => {
  it('lets administrators of a domain make plain users', () => expect(rolesFor('admin')).toEqual(['user']));
  it('lets superadmins make anybody', () => expect(rolesFor('superadmin')).toContain('superadmin'));
});

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
  server.graphql('user_list', () => ({
    user_list: {
      total_count: 1,
      items: [
        { uuid: 'u1', email: 'bob@example.com', role: 'user', status: 'active', totp_activated: true, groups: [] },
      ],
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
  it('says the status of a user in the language of the page', async () => {
    loginAs('superadmin');
    const bob = { uuid: 'u1', email: 'bob@example.com', role: 'user', status: 'before-verification', groups: [] };
    server.graphql('user_list', () => ({ user_list: { total_count: 1, items: [bob] } }));
    openPage('/people', server);
    expect(await screen.findByText('before verification')).toBeDefined();
  });
  it('offers monitors nothing to change', async () => {
    loginAs('monitor');
    openPage('/people', server);
    expect(await screen.findByText('bob@example.com')).toBeDefined();
    expect(screen.queryByRole('button', { name: /Deactivate/ })).toBeNull();
  });
});

const variablesOf = (field: string) =>
  server.requests.findLast(({ key }) => key === `gql ${field}`)?.body.variables as Record<string, unknown> | undefined;
async function choose(item: string) {
  openPage('/people', server);
  await userEvent.click(await screen.findByRole('button', { name: 'More actions: bob@example.com' }));
  await userEvent.click(await screen.findByRole('menuitem', { name: item }));
  return screen.findByRole('dialog');
}

describe('the actions on a user', () => {
  it('purge after the address was typed, and say what goes', async () => {
    loginAs('superadmin');
    server.graphql('compute_session_list', () => ({
      compute_session_list: { total_count: 2 },
      vfolder_list: { total_count: 1 },
      keypair_list: { total_count: 3 },
    }));
    server.graphql('purge_user', () => ({ purge_user: { ok: true, msg: '' } }));
    const dialog = await choose('Purge');
    expect(await within(dialog).findByText('2 live sessions end')).toBeDefined();
    expect(within(dialog).getByText('1 folder with its files')).toBeDefined();
    expect(variablesOf('compute_session_list')?.ofFolders).toBe('user_id == "u1"');
    const button = within(dialog).getByRole<HTMLButtonElement>('button', { name: 'Purge' });
    expect(button.disabled).toBe(true);
    await userEvent.type(within(dialog).getByRole('textbox'), 'bob@example.com');
    await userEvent.click(button);
    await expect.poll(() => variablesOf('purge_user')).toEqual({ email: 'bob@example.com', withShared: false });
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('offer no purge to administrators of a domain', async () => {
    loginAs('admin');
    openPage('/people', server);
    await userEvent.click(await screen.findByRole('button', { name: 'More actions: bob@example.com' }));
    expect(await screen.findByRole('menuitem', { name: 'New keypair' })).toBeDefined();
    expect(screen.queryByRole('menuitem', { name: 'Purge' })).toBeNull();
  });
  it('reset one-time passwords', async () => {
    loginAs('admin');
    server.graphql('modify_user', () => ({ modify_user: { ok: true, msg: '' } }));
    const dialog = await choose('Reset one-time passwords');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Reset one-time passwords' }));
    await expect.poll(() => variablesOf('modify_user')).toEqual({ email: 'bob@example.com' });
  });
  it('make a keypair and show its secret once', async () => {
    loginAs('admin');
    server.graphql('create_keypair', () => ({
      create_keypair: { ok: true, msg: '', keypair: { access_key: 'AKIANEW', secret_key: 'the-secret' } },
    }));
    const dialog = await choose('New keypair');
    await userEvent.click(within(dialog).getByRole('button', { name: 'New keypair' }));
    expect(await screen.findByText('the-secret')).toBeDefined();
  });
});

describe('the list of keypairs', () => {
  it('lets administrators deactivate one', async () => {
    loginAs('admin');
    server.graphql('keypair_list', () => ({
      keypair_list: { total_count: 1, items: [{ access_key: 'AKIABOB', user_id: 'bob@example.com', is_active: true }] },
    }));
    server.graphql('modify_keypair', () => ({ modify_keypair: { ok: true, msg: '' } }));
    openPage('/people?tab=keypairs', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Deactivate AKIABOB' }));
    const dialog = await screen.findByRole('dialog');
    expect(dialog.textContent).toContain('refused at once');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Deactivate' }));
    await expect.poll(() => variablesOf('modify_keypair')).toEqual({ accessKey: 'AKIABOB', isActive: false });
  });
});

describe('the form of a user', () => {
  const person = {
    email: 'bob@example.com',
    username: 'bob',
    full_name: 'Bob',
    description: '',
    role: 'user',
    domain_name: 'default',
    need_password_change: false,
    allowed_client_ip: ['10.0.0.0/8'],
    resource_policy: 'usual',
    sudo_session_enabled: false,
  };
  beforeEach(() => {
    server.graphql('user', () => ({ user: person, keypair: { access_key: 'AKIATEST' } }));
    server.graphql('domains', () => ({ domains: [{ name: 'default' }, { name: 'other' }] }));
    server.graphql('keypair_resource_policies', () => ({
      keypair_resource_policies: [{ name: 'tight' }],
      user_resource_policies: [{ name: 'usual' }, { name: 'large' }],
      project_resource_policies: [],
    }));
  });
  it('sends what superadmins change, with what is refused at its field', async () => {
    loginAs('superadmin');
    server.on('gql modify_user', () => ({
      body: {
        data: { modify_user: { ok: false, msg: 'allowed_client_ip: no network' } },
        extensions: { problems: { modify_user: { status: 400, type: 'x', data: { allowed_client_ip: 'malformed' } } } },
      },
    }));
    const dialog = await choose('Change');
    const networks = await within(dialog).findByLabelText<HTMLTextAreaElement>('Networks');
    expect(networks.value).toBe('10.0.0.0/8');
    await userEvent.clear(networks);
    await userEvent.type(networks, 'nowhere');
    await userEvent.selectOptions(within(dialog).getByLabelText('Role'), 'admin');
    await userEvent.selectOptions(within(dialog).getByLabelText('Storage policy'), 'large');
    await userEvent.type(within(dialog).getByLabelText('New password'), 'a long password');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect.poll(() => networks.getAttribute('aria-invalid')).toBe('true');
    expect(within(dialog).getByText('allowed_client_ip: no network')).toBeDefined();
    server.graphql('modify_user', () => ({ modify_user: { ok: true, msg: '' } }));
    await userEvent.clear(networks);
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect
      .poll(() => variablesOf('modify_user')?.props)
      .toEqual({ role: 'admin', resource_policy: 'large', password: 'a long password', allowed_client_ip: [] });
    expect(variablesOf('modify_user')?.id).toBe('bob@example.com');
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('is deleted until a purge, after what is lost and kept was told', async () => {
    loginAs('admin');
    server.graphql('compute_session_list', () => ({
      compute_session_list: { total_count: 2 },
      vfolder_list: { total_count: 3 },
      keypair_list: { total_count: 1 },
    }));
    server.graphql('delete_user', () => ({ delete_user: { ok: true, msg: '' } }));
    const dialog = await choose('Delete');
    expect(await within(dialog).findByText('2 live sessions end')).toBeDefined();
    expect(within(dialog).getByText('1 keypair becomes inactive')).toBeDefined();
    expect(dialog.textContent).toContain('stay until a purge');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Delete' }));
    await expect.poll(() => variablesOf('delete_user')).toEqual({ email: 'bob@example.com' });
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('has no limits for administrators of a domain', async () => {
    loginAs('admin');
    server.graphql('modify_user', () => ({ modify_user: { ok: true, msg: '' } }));
    const dialog = await choose('Change');
    const name = await within(dialog).findByLabelText('Name');
    for (const label of ['Role', 'Domain', 'Storage policy']) expect(within(dialog).queryByLabelText(label)).toBeNull();
    await userEvent.type(name, ' B.');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect.poll(() => variablesOf('modify_user')?.props).toEqual({ full_name: 'Bob B.' });
  });
});

describe('the actions on a keypair', () => {
  async function chooseForKey(item: string) {
    server.graphql('keypair_list', () => ({
      keypair_list: { total_count: 1, items: [{ access_key: 'AKIABOB', user_id: 'bob@example.com', is_active: true }] },
    }));
    openPage('/people?tab=keypairs', server);
    await userEvent.click(await screen.findByRole('button', { name: 'More actions: AKIABOB' }));
    await userEvent.click(await screen.findByRole('menuitem', { name: item }));
    return screen.findByRole('dialog');
  }
  it('change its limits', async () => {
    loginAs('superadmin');
    server.graphql('keypair_resource_policies', () => ({
      keypair_resource_policies: [{ name: 'default' }, { name: 'tight' }],
      user_resource_policies: [],
      project_resource_policies: [],
    }));
    server.graphql('keypair', () => ({
      keypair: { access_key: 'AKIABOB', is_admin: false, resource_policy: 'default', rate_limit: 30_000 },
    }));
    server.graphql('modify_keypair', () => ({ modify_keypair: { ok: true, msg: '' } }));
    const groups = [
      { name: 'closed', is_public: false },
      { name: 'left', is_public: false },
      { name: 'open', is_public: true },
    ];
    server.graphql('scaling_groups_for_keypair', () => ({
      scaling_groups_for_keypair: groups.slice(1),
      scaling_groups: groups,
    }));
    const dialog = await chooseForKey('Change');
    expect(await within(dialog).findByText('left')).toBeDefined();
    expect(within(dialog).queryByText('open')).toBeNull();
    await userEvent.selectOptions(await within(dialog).findByLabelText('Limits of keypairs'), 'tight');
    await userEvent.clear(within(dialog).getByLabelText('Requests in 15 minutes'));
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect
      .poll(() => variablesOf('modify_keypair'))
      .toEqual({ id: 'AKIABOB', name: 'AKIABOB', props: { resource_policy: 'tight', rate_limit: 0 } });
  });
  it('give it a new secret, which is shown once', async () => {
    loginAs('admin');
    server.graphql('rotate_keypair', () => ({
      rotate_keypair: { ok: true, msg: '', keypair: { access_key: 'AKIABOB', secret_key: 'the-new-secret' } },
    }));
    const dialog = await chooseForKey('New secret');
    expect(dialog.textContent).toContain('refused at once');
    expect(variablesOf('rotate_keypair')).toBeUndefined();
    await userEvent.click(within(dialog).getByRole('button', { name: 'New secret' }));
    expect(await screen.findByText('the-new-secret')).toBeDefined();
  });
  it('make it the main one', async () => {
    loginAs('superadmin');
    server.graphql('user', () => ({ user: { email: 'bob@example.com', main_access_key: 'AKIAOLD' } }));
    server.graphql('modify_user', () => ({ modify_user: { ok: true, msg: '' } }));
    const dialog = await chooseForKey('Make it the main keypair');
    expect(await within(dialog).findByText('The main keypair now: AKIAOLD')).toBeDefined();
    await userEvent.click(within(dialog).getByRole('button', { name: 'Make it the main keypair' }));
    await expect.poll(() => variablesOf('modify_user')).toEqual({ email: 'bob@example.com', accessKey: 'AKIABOB' });
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('delete it, and say why it is kept', async () => {
    loginAs('admin');
    server.graphql('delete_keypair', () => ({ delete_keypair: { ok: false, msg: 'It is the main keypair.' } }));
    const dialog = await chooseForKey('Delete');
    const act = within(dialog).getByRole<HTMLButtonElement>('button', { name: 'Delete' });
    expect(act.disabled).toBe(true);
    await userEvent.type(within(dialog).getByRole('textbox'), 'AKIABOB');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Delete' }));
    expect((await within(dialog).findByRole('alert')).textContent).toContain('It is the main keypair.');
    expect(variablesOf('delete_keypair')).toEqual({ id: 'AKIABOB', name: 'AKIABOB' });
  });
});

describe('the page of a new user', () => {
  beforeEach(() => {
    server.graphql('domains', () => ({ domains: [{ name: 'default', is_active: true }] }));
    server.graphql('groups', () => ({
      groups: [{ id: 'g1', name: 'team', domain_name: 'default', is_active: true, type: 'GENERAL' }],
    }));
  });
  async function fill() {
    const page = openPage('/people/new', server);
    await userEvent.type(await screen.findByLabelText('E-mail address'), 'new@example.com');
    await userEvent.type(screen.getByLabelText('First password'), 'a long password');
    await userEvent.click(screen.getByRole('button', { name: 'Create the user' }));
    return page;
  }
  it('creates one in the own domain, who changes the password first', async () => {
    loginAs('superadmin');
    server.graphql('create_user', () => ({ create_user: { ok: true, msg: '', user: { uuid: 'u9' } } }));
    const { router } = await fill();
    await expect.poll(() => router.state.location.href).toContain('/people?q=');
    expect(variablesOf('create_user')).toEqual({
      email: 'new@example.com',
      props: {
        full_name: null,
        password: 'a long password',
        need_password_change: true,
        role: 'user',
        domain_name: 'default',
        group_ids: null,
        resource_policy: null,
      },
    });
  });
  it('says that somebody is created whose keypair did not get its policy', async () => {
    loginAs('superadmin');
    server.graphql('keypair_resource_policies', () => ({
      keypair_resource_policies: [{ name: 'large' }],
      user_resource_policies: [],
      project_resource_policies: [],
    }));
    const user = { uuid: 'u9', main_access_key: 'AKIANEW' };
    server.graphql('create_user', () => ({ create_user: { ok: true, msg: '', user } }));
    server.graphql('modify_keypair', () => ({ modify_keypair: { ok: false, msg: 'The policy is gone.' } }));
    openPage('/people/new', server);
    await userEvent.type(await screen.findByLabelText('E-mail address'), 'new@example.com');
    await userEvent.type(screen.getByLabelText('First password'), 'a long password');
    await screen.findByRole('option', { name: 'large' });
    await userEvent.selectOptions(screen.getByLabelText('Policy of the keypair'), 'large');
    await userEvent.click(screen.getByRole('button', { name: 'Create the user' }));
    expect(await screen.findByText('new@example.com is created, but without the policy of the keypair')).toBeDefined();
    expect(screen.getByText('The policy is gone.')).toBeDefined();
    expect(screen.queryByRole('button', { name: 'Create the user' })).toBeNull();
  });
  it('tells a refusal at its field', async () => {
    loginAs('superadmin');
    server.on('gql create_user', () => ({
      body: {
        data: { create_user: { ok: false, msg: 'a user exists already' } },
        extensions: { problems: { create_user: { status: 409, type: 'x/conflict', data: { email: 'taken' } } } },
      },
    }));
    await fill();
    expect(await screen.findByText('a user exists already')).toBeDefined();
    expect(screen.queryByRole('alert')).toBeNull();
    expect(screen.getByLabelText<HTMLInputElement>('E-mail address').value).toBe('new@example.com');
  });
  it('tells a refusal of no field on the page', async () => {
    loginAs('admin');
    server.graphql('create_user', () => ({ create_user: { ok: false, msg: 'You do not administrate that user.' } }));
    await fill();
    expect((await screen.findByRole('alert')).textContent).toContain('You do not administrate that user.');
  });
  it('is not for monitors', async () => {
    loginAs('monitor');
    openPage('/people/new', server);
    expect(await screen.findByText(/Your role is monitor/)).toBeDefined();
  });
});
