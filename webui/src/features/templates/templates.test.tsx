import { screen, waitFor } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

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
});
