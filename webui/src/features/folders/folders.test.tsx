import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

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
