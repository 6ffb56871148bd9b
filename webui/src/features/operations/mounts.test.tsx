import { screen } from '@testing-library/react';
import { expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

it('the page of storage shows the file systems under the volumes of each proxy, or why it cannot', async () => {
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
  const view = (mounts: string[]) => ({ success: true, mounts, message: '' });
  const line = '/dev/sda1 on / type ext4: local at /data';
  server.on('GET /func/folders/_/mounts', () => ({
    body: { manager: view([]), agents: {}, storage_proxy: { proxy: view([line]), other: view([]) } },
  }));
  const { unmount } = openPage('/storage', server);
  expect(await screen.findByText(line)).toBeDefined();
  expect(screen.getByRole('group', { name: 'File systems of other' }).textContent).toBe('–');
  unmount();
  server.on('GET /func/folders/_/mounts', () => ({ status: 503, body: { title: 'The storage proxy is away.' } }));
  openPage('/storage', server);
  expect(await screen.findByText('The storage proxy is away.')).toBeDefined();
  expect(await screen.findByRole('heading', { name: 'proxy:local' })).toBeDefined();
});
