import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

const file = { path: '.vimrc', permission: '644', data: 'set nu' };
let server: FakeServer;
let files: (typeof file)[];
let admins: string[];
const loginAs = (role: string) =>
  server.on('POST /server/login-check', () => ({
    body: { authenticated: true, data: { access_key: 'AKIATEST', role } },
  }));
const press = async (name: string | RegExp) => userEvent.click(await screen.findByRole('button', { name }));
const sent = (key: string) => server.requests.filter((request) => request.key === key).map(({ body }) => body);

beforeEach(() => {
  server = new FakeServer();
  files = [file];
  admins = [];
  server.graphql('group', () => ({
    group: { id: 'g', name: 'team', domain_name: 'default', is_active: true, type: 'GENERAL', admins },
  }));
  server.graphql('group_member_list', () => ({ group_member_list: { total_count: 0, items: [] } }));
  server.graphql('domains', () => ({ domains: [{ name: 'default', description: 'all of us', is_active: true }] }));
});

describe('the dotfiles of a project', () => {
  let asked: (string | null)[];
  beforeEach(() => {
    asked = [];
    const remember = (request: Request) => asked.push(new URL(request.url).search);
    server.on('GET /func/group-config/dotfiles', (_, request) => {
      remember(request);
      return { body: files };
    });
    server.on('DELETE /func/group-config/dotfiles', (_, request) => {
      remember(request);
      files = [];
      return { body: { success: true } };
    });
  });
  it('are added, changed and deleted by who administrates it', async () => {
    admins = ['u'];
    server.on('POST /func/group-config/dotfiles', () => ({
      status: 400,
      body: { type: 'x/invalid-api-params', title: 'Refused', data: { path: 'reserved' } },
    }));
    server.on('PATCH /func/group-config/dotfiles', () => ({ body: {} }));
    openPage('/projects/g', server);
    await press('Add a dotfile');
    const card = within(screen.getByRole('region', { name: 'Dotfiles' }));
    await userEvent.type(card.getByLabelText('Path'), '.tmux.conf');
    await userEvent.type(card.getByLabelText('Content'), 'x');
    await press('Save the dotfile');
    expect(await card.findByText('reserved')).toBeDefined();
    expect(sent('POST /func/group-config/dotfiles')).toEqual([
      { path: '.tmux.conf', permission: '644', data: 'x', group: 'g' },
    ]);
    await press('Cancel');
    await press('Edit .vimrc');
    await userEvent.type(card.getByLabelText('Content'), '!');
    await press('Save the dotfile');
    await expect
      .poll(() => sent('PATCH /func/group-config/dotfiles'))
      .toEqual([{ ...file, data: 'set nu!', group: 'g' }]);
    await press('Delete .vimrc');
    const dialog = await screen.findByRole('dialog', { name: 'Delete .vimrc?' });
    await userEvent.click(within(dialog).getByRole('button', { name: 'Delete' }));
    await expect.poll(() => asked).toContain('?path=.vimrc&group=g');
    await expect.poll(() => screen.queryByRole('button', { name: 'Edit .vimrc' })).toBeNull();
    expect(asked[0]).toBe('?group=g');
  });
  it('are shown to its members, who change nothing', async () => {
    openPage('/projects/g', server);
    await press('Show .vimrc');
    const text = screen.getByLabelText<HTMLTextAreaElement>('Content');
    expect([text.value, text.readOnly]).toEqual(['set nu', true]);
    for (const name of ['Add a dotfile', 'Delete .vimrc', 'Save the dotfile'])
      expect(screen.queryByRole('button', { name })).toBeNull();
    await press('Close the dotfile');
    expect(screen.queryByLabelText('Content')).toBeNull();
  });
});

describe('the dotfiles of a domain', () => {
  beforeEach(() => server.on('GET /func/domain-config/dotfiles', () => ({ body: files })));
  it('are added on its page, which the list of domains leads to', async () => {
    loginAs('admin');
    server.on('POST /func/domain-config/dotfiles', () => ({ body: {} }));
    const { router } = openPage('/people?tab=domains', server);
    await userEvent.click(await screen.findByRole('link', { name: 'default' }));
    await press('Add a dotfile');
    expect(router.state.location.pathname).toBe('/domains/default');
    expect(screen.getByText(/its project or its owner has another/)).toBeDefined();
    await userEvent.type(screen.getByLabelText('Path'), '.bashrc');
    await press('Save the dotfile');
    await expect
      .poll(() => sent('POST /func/domain-config/dotfiles'))
      .toEqual([{ path: '.bashrc', permission: '644', data: '', domain: 'default' }]);
  });
  it('are shown to monitors, who change nothing', async () => {
    loginAs('monitor');
    openPage('/domains/default', server);
    expect(await screen.findByRole('button', { name: 'Show .vimrc' })).toBeDefined();
    expect(screen.queryByRole('button', { name: 'Add a dotfile' })).toBeNull();
  });
  it('are not asked for where there is no such domain', async () => {
    loginAs('superadmin');
    openPage('/domains/absent', server);
    expect(await screen.findByText('There is no such domain')).toBeDefined();
    expect(sent('GET /func/domain-config/dotfiles')).toEqual([]);
  });
  it('are kept from users', async () => {
    openPage('/domains/default', server);
    expect(await screen.findByText('403')).toBeDefined();
    expect(sent('GET /func/domain-config/dotfiles')).toEqual([]);
  });
});
