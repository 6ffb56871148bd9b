import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { audienceOf, isViewer, viewersOf } from './rules';

describe('the audience of an artifact', () => {
  it.each([null, ['everyone'], [], ['domain:default', 'user:a@b.c']])('is the same after the form: %j', (viewers) =>
    expect(viewersOf(audienceOf(viewers), viewers ?? [])).toEqual(viewers),
  );
  it.each(['default', 'domain:', 'team:x', 'user:a b'])('has no viewer %s', (text) =>
    expect(isViewer(text)).toBe(false),
  );
});

const artifact = {
  id: 'a',
  type: 'IMAGE',
  name: 'acme/tiny',
  description: '',
  registry: 'hub',
  registry_type: 'huggingface',
  extra: {},
  restricted: false,
  viewers: null,
  scanned_at: '2026-01-01T00:00:00Z',
  created_at: '2026-01-01T00:00:00Z',
  readme: null,
  revisions: [
    {
      id: 'r1',
      artifact_id: 'a',
      version: 'v1',
      status: 'AVAILABLE',
      status_info: null,
      size: 5,
      is_outdated: false,
      progress: null,
    },
  ],
};
let server: FakeServer;
let role: string;
beforeEach(() => {
  role = 'superadmin';
  server = new FakeServer();
  server.on('POST /server/login-check', () => ({
    body: { authenticated: true, data: { access_key: 'A', role, status: 'active' } },
  }));
  server.on('GET /func/artifacts/a', () => ({ body: artifact }));
});
const sent = (key: string) => server.requests.filter((request) => request.key === key).map(({ body }) => body);

describe('an artifact', () => {
  it('is shared with some', async () => {
    server.on('PATCH /func/artifacts/a', () => ({ body: artifact }));
    openPage('/artifacts/a', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Who may use it' }));
    const dialog = await screen.findByRole('dialog');
    await userEvent.click(within(dialog).getByRole('radio', { name: 'Some domains, projects or users' }));
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    expect(within(dialog).getByText(/and one is needed/)).toBeDefined();
    expect(sent('PATCH /func/artifacts/a')).toEqual([]);
    await userEvent.type(within(dialog).getByRole('combobox', { name: /They are/ }), 'domain:default{Enter}');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Save' }));
    await expect.poll(() => sent('PATCH /func/artifacts/a')).toEqual([{ viewers: ['domain:default'] }]);
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });
  it('is deleted after a question, or kept for a reason', async () => {
    server.on('DELETE /func/artifacts/a', () => ({ status: 409, body: { title: 'Files of it are stored.' } }));
    server.on('GET /func/artifacts', () => ({ body: { items: [], total_count: 0 } }));
    const { router } = openPage('/artifacts/a', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Delete' }));
    const dialog = await screen.findByRole('dialog', { name: 'Delete acme/tiny?' });
    expect(dialog.textContent).toContain('with 1 version');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Delete' }));
    expect(await within(dialog).findByText('Files of it are stored.')).toBeDefined();
    server.on('DELETE /func/artifacts/a', () => ({ status: 204 }));
    await userEvent.click(within(dialog).getByRole('button', { name: 'Delete' }));
    await expect.poll(() => router.state.location.pathname).toBe('/artifacts');
  });
  it('of images is installed on agents', async () => {
    server.on('POST /func/artifacts/revisions/r1/install', () => ({
      status: 400,
      body: { title: 'No agent matches.' },
    }));
    openPage('/artifacts/a', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Install v1 on agents' }));
    const dialog = await screen.findByRole('dialog');
    await userEvent.type(within(dialog).getByLabelText('Name of the image'), 'tiny:1');
    await userEvent.click(within(dialog).getByRole('button', { name: 'Install' }));
    expect(await within(dialog).findByText('No agent matches.')).toBeDefined();
    expect(sent('POST /func/artifacts/revisions/r1/install')).toEqual([{ agents: '*', image: 'tiny:1' }]);
  });
  it('is not changed by users', async () => {
    role = 'user';
    openPage('/artifacts/a', server);
    expect(await screen.findByText('v1')).toBeDefined();
    for (const name of ['Who may use it', 'Delete', 'Install v1 on agents'])
      expect(screen.queryByRole('button', { name })).toBeNull();
  });
});
