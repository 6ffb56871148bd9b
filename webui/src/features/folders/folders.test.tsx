import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { isFull, newFolderOf, quotaOf, scopesOf } from './rules';

it('the trash loses a folder once its files are deleted in the background', async () => {
  const server = new FakeServer();
  server.on('GET /func/folders/invitations/list', () => ({ body: { invitations: [] } }));
  server.on('GET /func/folders/_/hosts', () => ({ body: { allowed: [], default: '', volume_info: {} } }));
  const folder = { id: 'f1', name: 'going', status: 'delete-ongoing', is_owner: true, permission: 'rw', host: 'h' };
  let answers = 0;
  server.on('GET /func/folders', () => {
    answers += 1;
    return { body: answers > 1 ? [] : [folder] };
  });
  openPage('/folders?view=trash', server);
  expect(await screen.findByText('going')).toBeDefined();
  await expect.poll(() => screen.queryByText('going'), { timeout: 10_000 }).toBeNull();
});

it('a copy that is being filled is not asked with whom it is shared', async () => {
  const server = new FakeServer();
  let asked = 0;
  server.on('GET /func/folders/_/shared', () => {
    asked += 1;
    return { status: 409, body: { title: 'the folder is being filled' } };
  });
  server.on('GET /func/folders/f1', () => ({
    body: {
      id: 'f1',
      name: 'copy',
      status: 'performing',
      is_owner: true,
      ownership_type: 'user',
      permission: 'wd',
      host: 'h',
      creator: 'ann',
      created_at: '2026-01-01T00:00:00Z',
      used_bytes: null,
      num_files: null,
      max_size: null,
      usage_mode: 'general',
      cloneable: false,
    },
  }));
  openPage('/folders/f1', server);
  expect(await screen.findByText('The files are being copied')).toBeDefined();
  await new Promise((resolve) => setTimeout(resolve, 300));
  expect(asked).toBe(0);
});

it('a file is renamed or moved in its folder, and a refusal is told', async () => {
  const server = new FakeServer();
  server.on('GET /func/folders/f1', () => ({
    body: { id: 'f1', name: 'data', status: 'ready', is_owner: true, permission: 'rw', host: 'h', creator: 'ann' },
  }));
  server.on('GET /func/folders/f1/files', () => ({
    body: { items: [{ name: 'a.txt', type: 'FILE', size: 1, modified: 1, mode: '' }], next: null },
  }));
  server.on('POST /func/folders/f1/move-file', () => ({ status: 409, body: { title: 'There is one already.' } }));
  openPage('/folders/f1/files/sub', server);
  await userEvent.click(await screen.findByRole('button', { name: 'Rename or move a.txt' }));
  const dialog = await screen.findByRole('dialog', { name: 'Rename or move a.txt' });
  const field = within(dialog).getByRole<HTMLInputElement>('textbox', { name: 'Path in the folder' });
  expect(field.value).toBe('sub/a.txt');
  await userEvent.clear(field);
  await userEvent.click(within(dialog).getByRole('button', { name: 'Move' }));
  expect(field.getAttribute('aria-invalid')).toBe('true');
  await userEvent.type(field, '../other/b.txt');
  await userEvent.click(within(dialog).getByRole('button', { name: 'Move' }));
  expect((await within(dialog).findByRole('alert')).textContent).toContain('There is one already.');
  server.on('POST /func/folders/f1/move-file', () => ({ body: { msg: '' } }));
  await userEvent.click(within(dialog).getByRole('button', { name: 'Move' }));
  await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  const sent = server.requests.filter(({ key }) => key.endsWith('move-file')).map(({ body }) => body);
  expect(sent).toEqual(Array.from({ length: 2 }, () => ({ src: 'sub/a.txt', dst: 'other/b.txt' })));
});

describe('the files of a folder', () => {
  const ready = {
    id: 'f1',
    name: 'data',
    status: 'ready',
    is_owner: true,
    permission: 'rw',
    host: 'h',
    creator: 'ann',
  };
  const entry = (name: string, type = 'FILE') => ({ name, type, size: 1, modified: 1, mode: '' });
  let server: FakeServer;
  beforeEach(() => {
    server = new FakeServer();
    server.on('GET /func/folders/f1', () => ({ body: ready }));
  });

  it('of another directory are not selected by names that they share', async () => {
    server.on('GET /func/folders/f1/files', () => ({
      body: { items: [entry('a.txt'), entry('sub', 'DIRECTORY')], cursor: null },
    }));
    openPage('/folders/f1', server);
    await userEvent.click(await screen.findByRole('checkbox', { name: 'Select a.txt' }));
    expect(screen.getByRole('button', { name: 'Delete 1' })).toBeDefined();
    await userEvent.click(screen.getByRole('link', { name: 'sub' }));
    await expect.poll(() => screen.queryByRole('link', { name: 'data' })).not.toBeNull();
    const box = await screen.findByRole<HTMLInputElement>('checkbox', { name: 'Select a.txt' });
    expect(box.checked).toBe(false);
    expect(screen.queryByRole('button', { name: 'Delete 1' })).toBeNull();
  });

  it('are not replaced unasked where they are on a page that is not shown', async () => {
    const listings: string[] = [];
    server.on('GET /func/folders/f1/files', (_, request) => {
      const { searchParams } = new URL(request.url);
      listings.push(searchParams.get('cursor') ?? '');
      const isFirst = searchParams.get('cursor') === null;
      return { body: { items: [entry(isFirst ? 'a.txt' : 'z.txt')], cursor: isFirst ? 'next' : null } };
    });
    server.on('POST /func/folders/f1/request-uploads', () => ({ status: 409, body: { title: 'No room.' } }));
    openPage('/folders/f1', server);
    await screen.findByText('a.txt');
    await userEvent.upload(screen.getByLabelText('Upload files', { selector: 'input' }), [
      new File(['x'], 'z.txt'),
      new File(['x'], 'new.txt'),
    ]);
    const dialog = await screen.findByRole('dialog', { name: '1 file is there already' });
    expect(dialog.textContent).toContain('z.txt');
    const sent = server.requests.filter(({ key }) => key.endsWith('request-uploads')).map(({ body }) => body.files);
    expect(sent).toEqual([[{ path: 'new.txt', size: 1 }]]);
    expect(listings).toContain('next');
  });
});

describe('the acts on a folder', () => {
  const folder = (more: object) => ({
    id: 'f1',
    name: 'data',
    status: 'ready',
    is_owner: false,
    ownership_type: 'user',
    permission: 'wd',
    host: 'h',
    creator: 'ann',
    created_at: '2026-01-01T00:00:00Z',
    used_bytes: null,
    num_files: null,
    cloneable: false,
    ...more,
  });
  let server: FakeServer;
  let shared: object[];
  beforeEach(() => {
    shared = [];
    server = new FakeServer();
    server.on('GET /func/folders/f1/files', () => ({ body: { items: [], cursor: null } }));
    server.on('GET /func/folders', () => ({ body: shared }));
    server.on('GET /func/folders/f1', () => ({ body: folder({}) }));
  });
  const loginAs = (role: string) =>
    server.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'AKIATEST', role, status: 'active' } },
    }));

  it('of somebody else are for superadmins, but they cannot leave what is not shared with them', async () => {
    loginAs('superadmin');
    openPage('/folders/f1', server);
    expect(await screen.findByRole('button', { name: 'Rename' })).toBeDefined();
    expect(screen.getByRole('button', { name: 'Delete' })).toBeDefined();
    await expect.poll(() => server.requests.some(({ key }) => key === 'GET /func/folders')).toBe(true);
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(screen.queryByRole('button', { name: 'Leave' })).toBeNull();
  });
  it('let those leave with whom it is shared', async () => {
    shared = [folder({})];
    openPage('/folders/f1', server);
    expect(await screen.findByRole('button', { name: 'Leave' })).toBeDefined();
    expect(screen.queryByRole('button', { name: 'Rename' })).toBeNull();
  });
  it('open without the error of the last try, and ask before a share ends', async () => {
    server.on('GET /func/folders/f1', () => ({ body: folder({ is_owner: true }) }));
    server.on('DELETE /func/folders', () => ({ status: 409, body: { title: 'A session has it.' } }));
    const share = { shared_to: { uuid: 'u2', email: 'bob@example.com' }, perm: 'ro' };
    server.on('GET /func/folders/_/shared', () => ({ body: { shared: [share] } }));
    server.on('POST /func/folders/_/shared', () => ({ body: { msg: 'ended' } }));
    openPage('/folders/f1', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Delete' }));
    let dialog = await screen.findByRole('dialog');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Move to trash' }));
    expect(await within(dialog).findByText('A session has it.')).toBeDefined();
    await userEvent.click(within(dialog).getByRole('button', { name: 'Cancel' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    await userEvent.click(screen.getByRole('button', { name: 'Delete' }));
    dialog = await screen.findByRole('dialog');
    expect(within(dialog).queryByText('A session has it.')).toBeNull();
    await userEvent.click(within(dialog).getByRole('button', { name: 'Cancel' }));
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    await userEvent.click(await screen.findByRole('button', { name: 'End sharing' }));
    dialog = await screen.findByRole('dialog', { name: 'End sharing data with bob@example.com?' });
    expect(server.requests.some(({ key }) => key === 'POST /func/folders/_/shared')).toBe(false);
    await userEvent.click(within(dialog).getByRole('button', { name: 'End sharing' }));
    await expect
      .poll(() => server.requests.find(({ key }) => key === 'POST /func/folders/_/shared')?.body)
      .toEqual({ vfolder: 'f1', user: 'u2', perm: null });
  });
});

function emptyFolders(): FakeServer {
  const server = new FakeServer();
  server.on('GET /func/folders/invitations/list', () => ({ body: { invitations: [] } }));
  server.on('GET /func/folders/_/hosts', (_, request) => ({
    body: {
      allowed: new URL(request.url).searchParams.get('group_id') === 'g' ? ['of-team'] : ['h1', 'h2'],
      default: 'h1',
      volume_info: {},
    },
  }));
  server.on('GET /func/folders', () => ({ body: [] }));
  server.graphql('quota_scope', () => ({ quota_scope: { details: null } }));
  return server;
}

it('the request of a folder has only what was chosen', () => {
  const draft = {
    name: ' x ',
    project: '',
    host: '',
    usage: 'general',
    permission: 'ro',
    quota: '',
    isCloneable: false,
  };
  expect(newFolderOf(draft)).toEqual({ name: 'x' });
  expect(newFolderOf({ ...draft, project: 'g', host: 'h', usage: 'model', quota: '1k', isCloneable: true })).toEqual({
    name: 'x',
    host: 'h',
    group: 'g',
    permission: 'ro',
    usage_mode: 'model',
    quota: 1024,
    cloneable: true,
  });
});

it('a folder of a project is made by who administrates it', async () => {
  const server = emptyFolders();
  server.graphql('groups', () => ({
    groups: [
      { id: 'g', name: 'team', domain_name: 'default', is_active: true, admins: ['u'] },
      { id: 'g2', name: 'others', domain_name: 'default', is_active: true, admins: ['x'] },
      { id: 'g3', name: 'old', domain_name: 'default', is_active: false, admins: ['u'] },
    ],
  }));
  server.on('POST /func/folders', () => ({
    status: 400,
    body: { title: 'The host keeps no quotas.', data: { quota: 'unsupported' } },
  }));
  openPage('/folders', server);
  await userEvent.click(await screen.findByRole('button', { name: 'New folder' }));
  const dialog = await screen.findByRole('dialog', { name: 'New folder' });
  await userEvent.type(within(dialog).getByRole('textbox', { name: 'Name' }), 'common');
  const owner = await within(dialog).findByRole<HTMLSelectElement>('combobox', { name: 'Owner' });
  expect([...owner.options].map(({ text }) => text)).toEqual(['You', 'team (default)']);
  await userEvent.selectOptions(owner, 'team (default)');
  await userEvent.selectOptions(within(dialog).getByRole('combobox', { name: 'What it is for' }), 'Data');
  await userEvent.selectOptions(within(dialog).getByRole('combobox', { name: 'What members may do' }), 'Read only');
  const quota = within(dialog).getByRole('textbox', { name: 'Limit' });
  await userEvent.type(quota, 'much');
  const create = within(dialog).getByRole('button', { name: 'Create' });
  await userEvent.click(create);
  expect(within(dialog).getByText(/A size is a number/)).toBeDefined();
  await userEvent.clear(quota);
  await userEvent.type(quota, '10g');
  await userEvent.click(within(dialog).getByRole('switch', { name: 'It may be copied' }));
  await userEvent.click(create);
  expect(await within(dialog).findByText('The host keeps no quotas.')).toBeDefined();
  const made = server.requests.filter(({ key }) => key === 'POST /func/folders').map(({ body }) => body);
  expect(made).toEqual([
    {
      name: 'common',
      host: 'h1',
      group: 'g',
      permission: 'ro',
      usage_mode: 'data',
      quota: 10 * 2 ** 30,
      cloneable: true,
    },
  ]);
});

it('quotas concern a person and their projects, and are full at the limit', () => {
  expect(scopesOf(null)).toEqual([]);
  expect(scopesOf({ uuid: 'u', email: 'a@b', groups: [{ id: 'g', name: 'team' }, null] })).toEqual([
    { scope: 'user:u', owner: 'a@b' },
    { scope: 'project:g', owner: 'team' },
  ]);
  const full = (used: unknown, limit: unknown) =>
    isFull(quotaOf('h', 's', 'o', { usage_bytes: used, hard_limit_bytes: limit, enforcement: 'soft' }));
  expect([full(5, 5), full('6', '5'), full(4, 5), full(5, null), full(null, 5), full(0, 0)]).toEqual([
    true,
    true,
    false,
    false,
    false,
    true,
  ]);
});

it('the page shows what is kept of how much, also beside a host that is away', async () => {
  const server = emptyFolders();
  server.on('gql quota_scope', (body) => {
    const { host, scope } = body.variables as Record<string, string>;
    if (host === 'h2') return { status: 502, body: { title: 'The storage proxy is away.' } };
    const limit = scope === 'user:u' ? 1024 : null;
    const details = { usage_bytes: 2048, hard_limit_bytes: limit, enforcement: 'soft' };
    return { body: { data: { quota_scope: { details } } } };
  });
  openPage('/folders', server);
  const table = await screen.findByRole('table', { name: 'Storage of you and your projects' });
  const rows = within(table).getAllByRole('row').slice(1);
  expect(rows.map((row) => row.textContent)).toEqual([
    'h1ann@example.com2 KiBFull1 KiBUploads and copies',
    'h1team2 KiBNoneUploads and copies',
    'h2ann@example.comThe storage proxy is away.––',
    'h2teamThe storage proxy is away.––',
  ]);
});

it('the page of a folder says how much its owner keeps', async () => {
  const server = new FakeServer();
  let isOwner = false;
  let asked = 0;
  server.on('GET /func/folders/f1', () => ({
    body: { id: 'f1', name: 'data', status: 'ready', is_owner: isOwner, permission: 'ro', host: 'h', creator: 'ann' },
  }));
  server.on('GET /func/folders/f1/files', () => ({ body: { items: [], cursor: null } }));
  server.on('GET /func/folders/_/shared', () => ({ body: { shared: [] } }));
  server.on('GET /func/folders/_/quota', (_, request) => {
    asked += 1;
    expect(new URL(request.url).search).toBe('?id=f1&folder_host=h');
    return { body: { quota_scope_id: 'user:u', used_bytes: 1024, limit_bytes: 1024, enforcement: 'soft' } };
  });
  const others = openPage('/folders/f1', server);
  expect(await screen.findByText('Read only')).toBeDefined();
  expect(asked).toBe(0);
  others.unmount();
  isOwner = true;
  openPage('/folders/f1', server);
  expect(await screen.findByText('1 KiB of 1 KiB')).toBeDefined();
  expect(screen.getByText('Full')).toBeDefined();
});
