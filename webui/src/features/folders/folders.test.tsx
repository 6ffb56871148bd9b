import { screen } from '@testing-library/react';
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
