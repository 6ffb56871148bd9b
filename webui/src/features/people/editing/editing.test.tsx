import { readFileSync } from 'node:fs';
import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { buildSchema, isInputObjectType } from 'graphql';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../../testing/render';
import { FakeServer } from '../../../testing/server';
import { countField, type Field, hostsField, jsonField, propsOf, slotsField } from './fields';
import {
  accessKeyFields,
  domainFields,
  keypairPolicyFields,
  newResourceGroup,
  personFields,
  personLimitFields,
  presetFields,
  projectFields,
  projectLimitFields,
  resourceGroupFields,
  storagePolicyFields,
} from './kinds';
import en from './locale/en.json';
import { openGroupsField } from './queries';

const schema = buildSchema(readFileSync('src/api/generated/schema.graphql', 'utf8'));
const none = { hosts: [], permissions: [] };
const open = { all: ['a', 'b', 'c'], open: ['a', 'b'] };
const words = { unlimited: '', limited: '' };
const domain = { name: 'd' } as never;
const forms: [string, string, readonly Field[]][] = [
  ['CreateKeyPairResourcePolicyInput', 'ModifyKeyPairResourcePolicyInput', keypairPolicyFields(null, none, words)],
  ['CreateUserResourcePolicyInput', 'ModifyUserResourcePolicyInput', storagePolicyFields(null)],
  ['CreateProjectResourcePolicyInput', 'ModifyProjectResourcePolicyInput', storagePolicyFields(null)],
  ['CreateResourcePresetInput', 'ModifyResourcePresetInput', presetFields(null)],
  ['CreateScalingGroupInput', 'ModifyScalingGroupInput', resourceGroupFields(null)],
  ['DomainInput', 'ModifyDomainInput', domainFields(null, none, open)],
  ['GroupInput', 'ModifyGroupInput', [...projectFields(null, ['d'], 'd'), ...projectLimitFields(null, [], none, open)]],
];

describe.each(forms)('the form of %s', (create, modify, fields) => {
  const namesOf = (type: string) => {
    const input = schema.getType(type);
    return isInputObjectType(input) ? Object.keys(input.getFields()) : [];
  };
  it.each(fields.map(({ name }) => name))('%s has a label and is a field of the API', (name) => {
    expect(Object.keys(en.field)).toContain(name);
    if (name === 'name' || name === openGroupsField) return;
    expect(namesOf(create)).toContain(name);
    expect(namesOf(modify)).toContain(name);
  });
  it('sends nothing of a new object but its name where nothing is filled in', () => {
    expect(propsOf(fields, { name: 'x' })).toEqual({ props: { name: 'x' }, errors: {} });
    expect(propsOf(fields, {}).errors).toEqual({ name: 'required' });
  });
});

/** Fields of the API that a form leaves out: published ones without effect here, and what is fixed. */
const leftOut: Record<string, string[]> = {
  ModifyKeyPairResourcePolicyInput: ['max_concurrent_sftp_sessions'],
};
it.each(forms.slice(0, 4))('the form of %s has every field of the API', (_, modify, fields) => {
  const input = schema.getType(modify);
  const all = isInputObjectType(input) ? Object.keys(input.getFields()) : [];
  expect(fields.map(({ name }) => name).sort()).toEqual(
    ['name', ...all.filter((name) => !leftOut[modify]?.includes(name))].sort(),
  );
});

describe.each([
  [
    'ModifyUserInput',
    [...personFields({} as never), ...personLimitFields({} as never, [], [], [])],
    ['is_active', 'status', 'totp_activated', 'group_ids', 'main_access_key'], // by acts of their own, or by the project
  ],
  ['ModifyKeyPairInput', accessKeyFields({} as never, []), ['is_active']],
] as [string, readonly Field[], string[]][])('the form of %s', (modify, fields, others) => {
  it('has every field of the API but those of other acts', () => {
    const input = schema.getType(modify);
    const all = isInputObjectType(input) ? Object.keys(input.getFields()) : [];
    expect(fields.map(({ name }) => name).sort()).toEqual(all.filter((name) => !others.includes(name)).sort());
  });
  it.each(fields.map(({ name, words: label }) => label ?? name))('%s has a label', (name) =>
    expect(Object.keys(en.field)).toContain(name),
  );
});

describe('propsOf', () => {
  const policy = {
    name: 'p',
    total_resource_slots: '{"cpu":"4","mem":"1073741824"}',
    default_for_unspecified: 'LIMITED',
    max_concurrent_sessions: 5,
    max_pending_session_count: 0,
    max_containers_per_session: 1,
    max_session_lifetime: 3600,
    idle_timeout: 0,
    allowed_vfolder_hosts: '{"local:volume1":["create-vfolder"]}',
  } as const;
  const fields = keypairPolicyFields(policy as never, { hosts: ['local:volume2'], permissions: ['all'] }, words);
  it('sends what has changed', () => {
    expect(propsOf(fields, {}).props).toEqual({});
    expect(
      propsOf(fields, {
        total_resource_slots: 'cpu=8',
        max_concurrent_sessions: '',
        max_session_lifetime: '2h',
        allowed_vfolder_hosts: { 'local:volume1': ['create-vfolder'], 'local:volume2': ['all'] },
      }).props,
    ).toEqual({
      total_resource_slots: '{"cpu":"8"}',
      max_concurrent_sessions: 0,
      max_session_lifetime: 7200,
      allowed_vfolder_hosts: '{"local:volume1":["create-vfolder"],"local:volume2":["all"]}',
    });
  });
  it.each([
    ['max_concurrent_sessions', '-1', 'count'],
    ['max_concurrent_sessions', '0', 'count'],
    ['max_containers_per_session', '', 'count'],
    ['max_session_lifetime', 'long', 'seconds'],
    ['total_resource_slots', 'cpu', 'slots'],
  ])('says what is wrong with %s: %j', (name, value, problem) =>
    expect(propsOf(fields, { [name]: value })).toEqual({ props: {}, errors: { [name]: problem } }),
  );
  it('opens and closes resource groups, and lets all registries in again', () => {
    const change = { [openGroupsField]: ['b', 'c'], allowed_docker_registries: [] };
    const ofDomain = domainFields({ name: 'd', allowed_docker_registries: ['r.io'] } as never, none, open);
    expect(propsOf(ofDomain, change).props).toEqual({
      [openGroupsField]: { add: ['c'], remove: ['a'] },
      allowed_docker_registries: ['*'],
    });
    expect(propsOf(domainFields(domain, none, open), { is_active: true }).props).toEqual({ is_active: true });
  });
  it('takes a size without limit as -1', () => {
    const ofStorage = storagePolicyFields({ name: 's', max_vfolder_count: 3, max_quota_scope_size: 2 ** 30 });
    expect(ofStorage.map(({ value }) => value)).toEqual(['3', '1g']);
    expect(propsOf(ofStorage, { max_quota_scope_size: '', max_vfolder_count: '' }).props).toEqual({
      max_quota_scope_size: -1,
      max_vfolder_count: 0,
    });
  });
  it('takes the bytes of a preset as text, and expressions by line', () => {
    const preset = { name: 'p', resource_slots: '{"cpu":"2"}', shared_memory: 2 ** 26, device_requests: ['a', 'b c'] };
    const fields = presetFields(preset);
    expect(fields.map(({ value }) => value)).toEqual(['cpu=2', '64m', 'a\nb c']);
    expect(propsOf(fields, { shared_memory: '', device_requests: '' }).props).toEqual({
      shared_memory: '0',
      device_requests: [],
    });
    expect(propsOf(fields, { shared_memory: '1g', device_requests: 'a \n\n' }).props).toEqual({
      shared_memory: String(2 ** 30),
      device_requests: ['a'],
    });
    expect(propsOf(fields, { shared_memory: 'much' }).errors).toEqual({ shared_memory: 'bytes' });
  });
  it('reads JSON objects alone', () => {
    const field = jsonField('scheduler_opts', '{"a":1}');
    expect(['', '{"a": 2}', '[1]', '1', 'x', '{'].map((text) => field.read(text))).toEqual([
      '{}',
      '{"a":2}',
      null,
      null,
      null,
      null,
    ]);
  });
  it('keeps what it does not know', () => {
    expect(resourceGroupFields({ name: 'g', scheduler: 'my-plugin' } as never).at(3)?.choices).toContain('my-plugin');
    expect(hostsField('h', 'broken', [], []).value).toEqual({});
    expect(slotsField('s', null).value).toBe('');
    expect(countField('c', -1).value).toBe('');
  });
});

let server: FakeServer;
const policy = {
  name: 'default',
  default_for_unspecified: 'UNLIMITED',
  total_resource_slots: '{}',
  max_concurrent_sessions: 5,
  max_containers_per_session: 64,
  idle_timeout: 0,
  allowed_vfolder_hosts: '{}',
};
beforeEach(() => {
  server = new FakeServer();
  server.graphql('keypair_resource_policies', () => ({
    keypair_resource_policies: [policy],
    user_resource_policies: [{ name: 'usual', max_vfolder_count: 0, max_quota_scope_size: -1 }],
    project_resource_policies: [],
  }));
  server.graphql('scaling_groups', () => ({
    scaling_groups: [
      { name: 'gpus', description: '', is_active: true, is_public: false, scheduler: 'fifo', scheduler_opts: '{}' },
    ],
  }));
  server.graphql('domains', () => ({ domains: [{ name: 'default', is_active: true, total_resource_slots: '{}' }] }));
  server.graphql('groups', () => ({
    groups: [{ id: 'g1', name: 'team', domain_name: 'default', is_active: true, type: 'GENERAL' }],
  }));
  for (const field of ['scaling_groups_for_domain', 'scaling_groups_for_user_group'])
    server.graphql(field, () => ({ [field]: [], scaling_groups: [{ name: 'gpus', is_public: false }] }));
  server.on('GET /func/folders/_/all-hosts', () => ({
    body: { allowed: ['local:volume1'], default: '', volume_info: {} },
  }));
  server.graphql('vfolder_host_permissions', () => ({
    vfolder_host_permissions: { vfolder_host_permission_list: ['create-vfolder'] },
  }));
});
const loginAs = (role: string) =>
  server.on('POST /server/login-check', () => ({
    body: { authenticated: true, data: { access_key: 'AKIATEST', role } },
  }));
const accept = (...fields: string[]) => {
  for (const field of fields) server.graphql(field, () => ({ [field]: { ok: true, msg: '' } }));
};
const refuse = (field: string, msg: string, data: Record<string, unknown>) =>
  server.on(`gql ${field}`, () => ({
    body: {
      data: { [field]: { ok: false, msg } },
      extensions: { problems: { [field]: { status: 400, type: 'x/invalid', data } } },
    },
  }));
const sent = (field: string) => server.requests.findLast(({ key }) => key === `gql ${field}`)?.body.variables;
const press = async (name: string) => userEvent.click(await screen.findByRole('button', { name }));
async function fill(dialog: HTMLElement, label: string, text: string) {
  const field = within(dialog).getByLabelText(label);
  await userEvent.clear(field);
  if (text !== '') await userEvent.type(field, text);
}

describe('the page of policies', () => {
  it('changes what was changed in the form, and nothing else', async () => {
    loginAs('superadmin');
    accept('modify_keypair_resource_policy');
    openPage('/policies', server);
    await press('Change: default');
    const dialog = await screen.findByRole('dialog', { name: 'Change: default' });
    expect((await within(dialog).findByLabelText<HTMLInputElement>('Sessions')).value).toBe('5');
    await fill(dialog, 'Sessions', '');
    await fill(dialog, 'Longest life of a session', '8h');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect
      .poll(() => sent('modify_keypair_resource_policy'))
      .toEqual({ id: 'default', name: 'default', props: { max_concurrent_sessions: 0, max_session_lifetime: 28_800 } });
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('sends nothing that is malformed, and nothing where nothing was changed', async () => {
    loginAs('superadmin');
    openPage('/policies', server);
    await press('Change: usual');
    const dialog = await screen.findByRole('dialog');
    await fill(dialog, 'Bytes on each volume', 'much');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    expect(within(dialog).getByText('This is no amount such as 20g.')).toBeDefined();
    await fill(dialog, 'Bytes on each volume', '');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    expect(server.requests.some(({ key }) => key.startsWith('gql modify'))).toBe(false);
  });
  it('tells a refusal at its field until that is changed', async () => {
    loginAs('superadmin');
    refuse('create_project_resource_policy', 'That name is taken already.', { name: 'taken' });
    openPage('/policies', server);
    await press('New policy of projects');
    const dialog = await screen.findByRole('dialog');
    await fill(dialog, 'Name', 'mine');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Create' }));
    const field = within(dialog).getByLabelText('Name');
    await expect.poll(() => field.getAttribute('aria-invalid')).toBe('true');
    expect(within(dialog).getByText('That name is taken already.')).toBeDefined();
    expect(within(dialog).queryByRole('alert')).toBeNull();
    await userEvent.type(field, 'x');
    await expect.poll(() => field.getAttribute('aria-invalid')).not.toBe('true');
  });
  it('deletes after a question, and says why a policy is kept', async () => {
    loginAs('superadmin');
    refuse('delete_user_resource_policy', "The resource policy 'usual' is in use.", { name: 'in use' });
    openPage('/policies', server);
    await press('Delete: usual');
    const dialog = await screen.findByRole('dialog', { name: 'Delete usual?' });
    const button = within(dialog).getByRole<HTMLButtonElement>('button', { name: 'Delete' });
    expect(button.disabled).toBe(true);
    await userEvent.type(within(dialog).getByLabelText('Type usual to confirm'), 'usual');
    expect(sent('delete_user_resource_policy')).toBeUndefined();
    await userEvent.click(button);
    expect((await within(dialog).findByRole('alert')).textContent).toContain('is in use');
    accept('delete_user_resource_policy');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Delete' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('deletes a policy of keypairs once its name was typed', async () => {
    loginAs('superadmin');
    accept('delete_keypair_resource_policy');
    openPage('/policies', server);
    await press('Delete: default');
    const dialog = await screen.findByRole('dialog', { name: 'Delete default?' });
    const button = within(dialog).getByRole<HTMLButtonElement>('button', { name: 'Delete' });
    expect(button.disabled).toBe(true);
    await userEvent.type(within(dialog).getByLabelText('Type default to confirm'), 'default');
    await userEvent.click(button);
    await expect.poll(() => sent('delete_keypair_resource_policy')).toEqual({ id: 'default', name: 'default' });
  });
  it('creates a resource group with what the API needs', async () => {
    loginAs('superadmin');
    accept('create_scaling_group');
    openPage('/policies', server);
    await press('New resource group');
    const dialog = await screen.findByRole('dialog');
    await fill(dialog, 'Name', 'cpus');
    await userEvent.click(within(dialog).getByLabelText('Open to everybody'));
    await userEvent.click(within(dialog).getByRole('button', { name: 'Create' }));
    await expect
      .poll(() => sent('create_scaling_group'))
      .toEqual({ name: 'cpus', props: { ...newResourceGroup, is_public: true } });
  });
  it('changes the network and the driver of a resource group', async () => {
    loginAs('superadmin');
    accept('modify_scaling_group');
    openPage('/policies', server);
    await press('Change: gpus');
    const dialog = await screen.findByRole('dialog');
    await userEvent.click(within(dialog).getByLabelText('Workloads use the network of their agent'));
    await userEvent.click(within(dialog).getByLabelText('Options of the driver'));
    await userEvent.paste('{"a":1}');
    await fill(dialog, 'Driver', '');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    expect(within(dialog).getByLabelText('Driver').getAttribute('aria-invalid')).toBe('true');
    await fill(dialog, 'Driver', 'static');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect
      .poll(() => sent('modify_scaling_group'))
      .toMatchObject({ props: { use_host_network: true, driver_opts: '{"a":1}' } });
  });
  it('permits single things on a storage host', async () => {
    loginAs('superadmin');
    accept('modify_keypair_resource_policy');
    server.graphql('vfolder_host_permissions', () => ({
      vfolder_host_permissions: { vfolder_host_permission_list: ['create-vfolder', 'upload-file', 'mount-in-session'] },
    }));
    openPage('/policies', server);
    await press('Change: default');
    const dialog = await screen.findByRole('dialog');
    const hosts = await within(dialog).findByLabelText('Storage hosts', { selector: 'input' });
    await userEvent.type(hosts, 'local:volume1{Enter}');
    const label = 'What may be done on local:volume1';
    const field = await within(dialog).findByLabelText(label, { selector: 'input' });
    await userEvent.type(field, '{Backspace}');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect
      .poll(() => sent('modify_keypair_resource_policy'))
      .toMatchObject({ props: { allowed_vfolder_hosts: '{"local:volume1":["create-vfolder","upload-file"]}' } });
  });
  it.each(['admin', 'monitor'])('offers %s nothing to change', async (role) => {
    loginAs(role);
    openPage('/policies', server);
    expect(await screen.findByText('gpus')).toBeDefined();
    await screen.findByText('usual');
    for (const name of [/^Change/, /^Delete/, /^New/]) expect(screen.queryByRole('button', { name })).toBeNull();
  });
});

describe('the page of presets', () => {
  beforeEach(() => {
    server.graphql('resource_presets', () => ({
      resource_presets: [
        { name: 'small', resource_slots: '{"cpu":"2"}', shared_memory: 2 ** 26, device_requests: ['a <b>'] },
      ],
    }));
  });
  it('changes one, with what the manager refuses at its field', async () => {
    loginAs('superadmin');
    refuse('modify_resource_preset', 'not a requirement', { device_requests: 'malformed' });
    openPage('/presets', server);
    expect(await screen.findByText('a <b>')).toBeDefined();
    await press('Change: small');
    const dialog = await screen.findByRole('dialog', { name: 'Change: small' });
    await fill(dialog, 'Devices', '==');
    await fill(dialog, 'Shared memory', '1g');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    const field = within(dialog).getByLabelText('Devices');
    await expect.poll(() => field.getAttribute('aria-invalid')).toBe('true');
    expect(within(dialog).getByText('not a requirement')).toBeDefined();
    accept('modify_resource_preset');
    await fill(dialog, 'Devices', '');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect
      .poll(() => sent('modify_resource_preset'))
      .toEqual({ id: 'small', name: 'small', props: { shared_memory: '1073741824', device_requests: [] } });
  });
  it('creates and deletes', async () => {
    loginAs('superadmin');
    accept('create_resource_preset', 'delete_resource_preset');
    openPage('/presets', server);
    await press('New preset');
    const dialog = await screen.findByRole('dialog', { name: 'New preset' });
    await fill(dialog, 'Name', 'large');
    await fill(dialog, 'Resources', 'cpu=8');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Create' }));
    await expect
      .poll(() => sent('create_resource_preset'))
      .toEqual({ name: 'large', props: { resource_slots: '{"cpu":"8"}' } });
    await press('Delete: small');
    await userEvent.click(
      within(await screen.findByRole('dialog', { name: 'Delete small?' })).getByRole('button', { name: 'Delete' }),
    );
    await expect.poll(() => sent('delete_resource_preset')).toEqual({ id: 'small', name: 'small' });
  });
  it.each(['admin', 'monitor'])('offers %s nothing to change', async (role) => {
    loginAs(role);
    openPage('/presets', server);
    expect(await screen.findByText('small')).toBeDefined();
    expect(screen.queryByRole('button', { name: /^(Change|Delete|New)/ })).toBeNull();
  });
});

describe('domains and projects', () => {
  it('a domain is opened a resource group, and nothing else of it changes', async () => {
    loginAs('superadmin');
    accept('associate_scaling_group_with_domain');
    openPage('/people?tab=domains', server);
    await press('Change: default');
    const dialog = await screen.findByRole('dialog');
    await userEvent.type(await within(dialog).findByLabelText('Resource groups', { selector: 'input' }), 'gpus{Enter}');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect
      .poll(() => sent('associate_scaling_group_with_domain'))
      .toEqual({ id: 'default', resourceGroup: 'gpus' });
    expect(sent('modify_domain')).toBeUndefined();
  });
  it('a project goes once its name was typed', async () => {
    loginAs('superadmin');
    accept('purge_group');
    openPage('/people?tab=groups', server);
    await press('Delete: team');
    const dialog = await screen.findByRole('dialog');
    expect(dialog.textContent).toContain('folders with all their files');
    const button = within(dialog).getByRole<HTMLButtonElement>('button', { name: 'Delete' });
    expect(button.disabled).toBe(true);
    await userEvent.type(within(dialog).getByRole('textbox'), 'team');
    await userEvent.click(button);
    await expect.poll(() => sent('purge_group')).toEqual({ id: 'g1', name: 'g1' });
  });
  it('administrators of a domain change what is theirs of a project, and delete none', async () => {
    loginAs('admin');
    accept('modify_group');
    openPage('/people?tab=groups', server);
    await press('Change: team');
    const dialog = await screen.findByRole('dialog');
    expect(within(dialog).queryByLabelText('Limits')).toBeNull();
    await fill(dialog, 'Description', 'ours');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect.poll(() => sent('modify_group')).toEqual({ id: 'g1', name: 'g1', props: { description: 'ours' } });
    expect(screen.queryByRole('button', { name: /^Delete/ })).toBeNull();
  });
  it('a new project is opened its resource groups by its id', async () => {
    loginAs('superadmin');
    server.graphql('create_group', () => ({ create_group: { ok: true, msg: '', group: { id: 'g2' } } }));
    accept('associate_scaling_group_with_user_group');
    openPage('/people?tab=groups', server);
    await press('New project');
    const dialog = await screen.findByRole('dialog');
    await userEvent.type(await within(dialog).findByLabelText('Name'), 'second');
    await userEvent.type(within(dialog).getByLabelText('Resource groups', { selector: 'input' }), 'gpus{Enter}');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Create' }));
    await expect.poll(() => sent('create_group')).toEqual({ name: 'second', props: {} });
    await expect
      .poll(() => sent('associate_scaling_group_with_user_group'))
      .toEqual({ id: 'g2', resourceGroup: 'gpus' });
  });
  it('a new project that exists is not created again where a resource group is refused', async () => {
    loginAs('superadmin');
    server.graphql('create_group', () => ({ create_group: { ok: true, msg: '', group: { id: 'g2' } } }));
    server.graphql('associate_scaling_group_with_user_group', () => ({
      associate_scaling_group_with_user_group: { ok: false, msg: 'There is no such group.' },
    }));
    openPage('/people?tab=groups', server);
    await press('New project');
    const dialog = await screen.findByRole('dialog');
    await userEvent.type(await within(dialog).findByLabelText('Name'), 'second');
    await userEvent.type(within(dialog).getByLabelText('Resource groups', { selector: 'input' }), 'gpus{Enter}');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Create' }));
    expect(await within(dialog).findByText('There is no such group.')).toBeDefined();
    expect(within(dialog).getByText('gpus')).toBeDefined();
    expect(within(dialog).queryByRole('button', { name: 'Create' })).toBeNull();
  });
});
