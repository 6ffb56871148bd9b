import { screen, waitFor, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { changesOf, emptyStart } from './start';

const row = (id: string, is_owner: boolean) => ({
  id,
  name: `name-${id}`,
  created_at: '2026-01-01T00:00:00Z',
  is_owner,
  type: 'user',
  user: 'u',
  user_email: 'ann@example.com',
  group: 'g',
  group_name: 'team',
  domain_name: 'default',
});

describe('templates', () => {
  let server: FakeServer;
  let rows: ReturnType<typeof row>[];
  beforeEach(() => {
    server = new FakeServer();
    rows = [];
    server.on('GET /func/template/session', () => ({ body: rows }));
  });
  it('keep a text that is refused, and say where', async () => {
    server.on('POST /func/template/session', (body) =>
      String(body.payload).includes('kind: odd')
        ? { status: 400, body: { type: 'x/invalid-api-params', title: 'Refused', data: { payload: 'kind: unknown' } } }
        : { body: [{ id: 'one', user: 'u' }] },
    );
    openPage('/templates?show=new', server);
    const text = (await screen.findByLabelText('Text of the template')) as HTMLTextAreaElement;
    expect(text.value).toContain('kind: taskTemplate');
    await userEvent.clear(text);
    await userEvent.type(text, 'kind: odd');
    await userEvent.click(screen.getByRole('button', { name: 'Create the template' }));
    expect(await screen.findByText('kind: unknown')).toBeDefined();
    expect(text.value).toBe('kind: odd');
  });
  it('start sessions, and are changed by their owners only', async () => {
    rows = [row('one', true), row('two', false)];
    server.on('GET /func/template/session/two', () => ({ body: 'text' }));
    server.on('POST /func/session/_/create-from-template', () => ({
      status: 201,
      body: { sessionId: '5c5f7a3e-0000-4000-8000-000000000000', created: true, status: 'PENDING' },
    }));
    const { router } = openPage('/templates?show=two', server);
    expect(await screen.findByText('Only the owner changes it.')).toBeDefined();
    expect(screen.queryByRole('button', { name: 'Delete name-two' })).toBeNull();
    expect(screen.getByRole('button', { name: 'Delete name-one' })).toBeDefined();
    await userEvent.click(screen.getByRole('button', { name: 'Start a session from name-one' }));
    await waitFor(() => expect(router.state.location.pathname).toContain('/sessions/5c5f7a3e'));
    const sent = server.requests.find(({ key }) => key.endsWith('create-from-template'))?.body;
    expect(sent).toEqual({ template_id: 'one', enqueueOnly: true, reuseIfExists: false });
  });
  it('start sessions with changes, and say at the field what is wrong with one', async () => {
    rows = [row('one', true)];
    const sent: Record<string, unknown>[] = [];
    const tokens = new Set<string | null>();
    server.on('GET /func/folders', () => ({ body: [{ id: 'f', name: 'data' }] }));
    server.on('POST /func/session/_/create-from-template', (body, request) => {
      sent.push(body);
      tokens.add(request.headers.get('X-BackendAI-Client-Token'));
      return sent.length === 1
        ? {
            status: 404,
            body: { type: 'x', title: 'Refused', detail: 'There is no claim mine.', data: { 'config.claim': 'x' } },
          }
        : { status: 201, body: { sessionId: 'abc', created: true, status: 'PENDING' } };
    });
    const { router } = openPage('/templates', server);
    await userEvent.click(await screen.findByRole('button', { name: 'Start with changes: name-one' }));
    const dialog = within(await screen.findByRole('dialog'));
    const start = dialog.getByRole('button', { name: 'Start' });
    await userEvent.type(dialog.getByLabelText('Resources'), 'cpu');
    await userEvent.click(start);
    expect(await dialog.findByText('Not lines such as NAME=VALUE')).toBeDefined();
    expect(sent).toEqual([]);
    await userEvent.type(dialog.getByLabelText('Resources'), '=2');
    await userEvent.type(dialog.getByLabelText('Environment variables'), 'KEY=secret');
    await userEvent.type(dialog.getByLabelText('Device claim'), 'mine');
    await userEvent.click(start);
    expect(await dialog.findByText('There is no claim mine.')).toBeDefined();
    expect(sent[0]).toMatchObject({ config: { resources: { cpu: '2' }, environ: { KEY: 'secret' }, claim: 'mine' } });
    await userEvent.click(dialog.getByLabelText('Without the claim of the template'));
    await userEvent.click(start);
    await waitFor(() => expect(router.state.location.pathname).toBe('/sessions/abc'));
    expect(sent[1]).toEqual({
      template_id: 'one',
      enqueueOnly: true,
      reuseIfExists: false,
      config: { resources: { cpu: '2' }, environ: { KEY: 'secret' }, claim: '' },
    });
    expect(tokens.size).toBe(2);
    expect(router.state.location.href).not.toContain('secret');
  });
});

describe('the changes of a start', () => {
  it('are nothing where the template decides', () => {
    expect(changesOf(emptyStart)).toEqual({ changes: {}, wrong: [] });
  });
  it('have mounts with their paths, and none of those that were taken away', () => {
    const draft = { ...emptyStart, name: ' it ', mounts: ['a'], paths: { a: '/a', b: '/b' }, readOnly: ['a', 'b'] };
    expect(changesOf(draft).changes).toEqual({
      name: 'it',
      config: { mounts: ['a'], mount_map: { a: '/a' }, mount_options: { a: { permission: 'ro' } } },
    });
  });
  it('cannot be read from other lines', () => {
    expect(changesOf({ ...emptyStart, resources: 'cpu 2', env: '=x' }).wrong).toEqual(['resources', 'env']);
  });
});
