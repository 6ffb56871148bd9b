import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

const share = {
  vfolder_id: 'f1',
  vfolder_name: 'data',
  status: 'ready',
  owner: 'u',
  type: 'user',
  shared_to: { uuid: 'u2', email: 'bob@example.com' },
  perm: 'ro',
};
const invitation = {
  id: 'i1',
  inviter: 'ann@example.com',
  invitee: 'eve@example.com',
  perm: 'rw',
  permission: 'rw',
  state: 'pending',
  created_at: null,
  modified_at: null,
  vfolder_id: 'f1',
  vfolder_name: 'data',
};

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
});
const sent = (key: string) => server.requests.filter((request) => request.key === key).map(({ body }) => body);

describe('shares and invitations', () => {
  beforeEach(() => {
    server.on('GET /func/folders/_/shared', () => ({ body: { shared: [share] } }));
    server.on('GET /func/folders/invitations/list-sent', () => ({ body: { invitations: [invitation] } }));
  });
  it('changes a share, and ends it after saying what is lost', async () => {
    server.on('POST /func/folders/_/shared', (body) =>
      body.perm === null
        ? { status: 409, body: { title: 'The folder is being moved.' } }
        : { body: { msg: 'changed' } },
    );
    openPage('/folders/shares', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Allow writing: bob@example.com, data' }));
    await expect.poll(() => sent('POST /func/folders/_/shared')).toEqual([{ vfolder: 'f1', user: 'u2', perm: 'rw' }]);
    await userEvent.click(await screen.findByRole('button', { name: 'End sharing: bob@example.com, data' }));
    const dialog = await screen.findByRole('dialog', { name: 'End sharing data with bob@example.com?' });
    expect(dialog.textContent).toContain('They cannot use the folder any more');
    await userEvent.click(within(dialog).getByRole('button', { name: 'End sharing' }));
    expect(await within(dialog).findByText('The folder is being moved.')).toBeDefined();
    expect(sent('POST /func/folders/_/shared').at(-1)).toEqual({ vfolder: 'f1', user: 'u2', perm: null });
  });
  it('changes what an invitation offers, and withdraws it', async () => {
    let asked = '';
    server.on('POST /func/folders/invitations/update/i1', () => ({ body: { msg: 'changed' } }));
    server.on('DELETE /func/folders/invitations/delete', (_, request) => {
      asked = new URL(request.url).search;
      return { body: { msg: 'withdrawn' } };
    });
    openPage('/folders/shares', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Only reading: eve@example.com, data' }));
    await expect.poll(() => sent('POST /func/folders/invitations/update/i1')).toEqual([{ perm: 'ro' }]);
    await userEvent.click(await screen.findByRole('button', { name: 'Withdraw: eve@example.com, data' }));
    const dialog = await screen.findByRole('dialog');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Withdraw' }));
    await expect.poll(() => asked).toBe('?inv_id=i1');
  });
  it('tells a part that fails beside one that is there', async () => {
    server.on('GET /func/folders/_/shared', () => ({ status: 503, body: { title: 'The database is away.' } }));
    openPage('/folders/shares', server);
    expect(await screen.findByText('The database is away.')).toBeDefined();
    expect(await screen.findByText('eve@example.com')).toBeDefined();
  });
});

describe('the folders of everybody', () => {
  const folder = {
    id: 'f9',
    name: 'left',
    status: 'ready',
    is_owner: false,
    ownership_type: 'user',
    permission: 'rw',
    host: 'h',
    user_email: 'gone@example.com',
    created_at: '2026-01-01T00:00:00Z',
  };
  let asked: string[];
  beforeEach(() => {
    asked = [];
    server.on('GET /func/folders/invitations/list', () => ({ body: { invitations: [] } }));
    server.on('GET /func/folders/_/hosts', () => ({ body: { allowed: [], default: '', volume_info: {} } }));
    server.on('GET /func/folders', (_, request) => {
      asked.push(new URL(request.url).search);
      return { body: [folder] };
    });
  });
  it('are given to another user by superadmins', async () => {
    server.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'A', role: 'superadmin', status: 'active' } },
    }));
    server.on('POST /func/folders/_/change-ownership', (body) =>
      body.user_email === 'bob@example.com'
        ? { body: { msg: 'changed' } }
        : { status: 404, body: { title: 'none', msg: 'There is no active user.', data: { user_email: 'unknown' } } },
    );
    server.graphql('vfolder_list', () => ({
      vfolder_list: {
        total_count: 2,
        items: [
          { ...folder, group_name: null, creator: 'gone', status: 'ready', cur_size: '2048' },
          {
            ...folder,
            id: 'f8',
            name: 'old',
            group_name: null,
            creator: 'gone',
            status: 'delete-pending',
            cur_size: null,
          },
        ],
      },
    }));
    openPage('/folders?view=all', server);
    const table = within(await screen.findByRole('table', { name: "Everybody's" }));
    expect(table.getByRole('row', { name: /^left gone@example\.com h Ready 2 ?KiB/ })).toBeDefined();
    expect(table.getByRole('row', { name: /^old gone@example\.com h In the trash –/ })).toBeDefined();
    expect(table.queryByRole('button', { name: 'Give away old' })).toBeNull();
    await userEvent.click(table.getByRole('button', { name: 'Give away left' }));
    expect(asked).toEqual([]);
    const dialog = await screen.findByRole('dialog');
    expect(dialog.textContent).toContain('gone@example.com cannot use the folder any more');
    const field = within(dialog).getByRole('textbox');
    const save = within(dialog).getByRole('button', { name: 'Change the owner' });
    await userEvent.type(field, 'bob');
    await userEvent.click(save);
    expect(within(dialog).getByText('This is no e-mail address')).toBeDefined();
    await userEvent.type(field, '@example.org');
    await userEvent.click(save);
    expect(await within(dialog).findByText('There is no active user.')).toBeDefined();
    await userEvent.clear(field);
    await userEvent.type(field, 'bob@example.com');
    await userEvent.click(save);
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
    expect(sent('POST /func/folders/_/change-ownership').at(-1)).toEqual({
      vfolder: 'f9',
      user_email: 'bob@example.com',
    });
  });
  it('are no choice of users', async () => {
    openPage('/folders', server);
    expect(await screen.findByText('left')).toBeDefined();
    expect(screen.queryByText("Everybody's")).toBeNull();
  });
});

describe('the folder of a project', () => {
  const folder = {
    id: 'f7',
    name: 'common',
    status: 'ready',
    is_owner: false,
    ownership_type: 'group',
    group_name: 'team',
    permission: 'wd',
    host: 'h',
    creator: 'ann',
    created_at: '2026-01-01T00:00:00Z',
    used_bytes: null,
    num_files: null,
    max_size: null,
    usage_mode: 'general',
    cloneable: false,
  };
  let role: string;
  let shares: unknown[];
  beforeEach(() => {
    role = 'admin';
    shares = [];
    server.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'A', role, status: 'active' } },
    }));
    server.on('GET /func/folders/f7', () => ({ body: folder }));
    server.on('GET /func/folders/f7/files', () => ({ body: { items: [], cursor: null } }));
    server.on('GET /func/folders/_/shared', () => ({ body: { shared: shares } }));
  });
  it('gives single members a permission of their own, and takes it back', async () => {
    server.on('POST /func/folders/f7/share', (body) => {
      if ((body.emails as string[])[0] !== 'bob@example.com')
        return { status: 404, body: { title: 'None of them is a member of the group.' } };
      shares = [share];
      return { status: 201, body: { shared_emails: ['bob@example.com'] } };
    });
    let ended = '';
    server.on('DELETE /func/folders/f7/unshare', (_, request) => {
      ended = new URL(request.url).searchParams.getAll('emails').join();
      shares = [];
      return { body: { unshared_emails: ['bob@example.com'] } };
    });
    openPage('/folders/f7', server);
    expect(await screen.findByText(/No member has a permission of their own/)).toBeDefined();
    const field = screen.getByRole('textbox', { name: 'Members, by e-mail address' });
    await userEvent.type(field, 'eve@example.com');
    await userEvent.click(screen.getByRole('button', { name: 'Set the permission' }));
    expect(await screen.findByText('None of them is a member of the group.')).toBeDefined();
    await userEvent.clear(field);
    await userEvent.type(field, 'bob@example.com');
    await userEvent.click(screen.getByRole('button', { name: 'Set the permission' }));
    expect(await screen.findByText('The permission is set for bob@example.com')).toBeDefined();
    expect(sent('POST /func/folders/f7/share').at(-1)).toEqual({ emails: ['bob@example.com'], permission: 'ro' });
    await userEvent.click(await screen.findByRole('button', { name: 'As other members' }));
    await expect.poll(() => ended).toBe('bob@example.com');
  });
  it('is shared by no other member', async () => {
    role = 'user';
    openPage('/folders/f7', server);
    expect(await screen.findByText('team')).toBeDefined();
    expect(screen.queryByText('Sharing')).toBeNull();
    expect(sent('GET /func/folders/_/shared')).toEqual([]);
  });
});
