import { screen } from '@testing-library/react';
import { expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

it.each([
  [['user', 'group'], 'Users, Projects'],
  [['user', 'word-of-tomorrow'], 'Users, word-of-tomorrow'],
  [[], 'No folders are stored.'],
])('the page of storage shows the owners that folders may have: %j', async (types, text) => {
  const server = new FakeServer();
  server.on('POST /server/login-check', () => ({
    body: { authenticated: true, data: { access_key: 'A', role: 'superadmin', status: 'active' } },
  }));
  server.graphql('storage_volume_list', () => ({
    storage_volume_list: {
      total_count: 1,
      items: [{ id: 'proxy:local', backend: 'vfs', path: '/data', usage: '{}', capabilities: [] }],
    },
  }));
  server.on('GET /func/config/vfolder-types', () => ({ body: types }));
  openPage('/storage', server);
  expect(await screen.findByRole('heading', { name: 'Owners that folders may have' })).toBeDefined();
  expect(await screen.findByText(text)).toBeDefined();
});
