import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { beforeEach, describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';

const problem = { type: 'https://api.backend.ai/probs/proof-required', status: 403, data: { proof: 'required' } };
let server: FakeServer;
let isProved: boolean;
const count = (wanted: string) => server.requests.filter(({ key }) => key === wanted).length;

beforeEach(() => {
  server = new FakeServer();
  isProved = false;
  server.on('POST /server/login-check', () => ({
    body: { authenticated: true, data: { access_key: 'AKIATEST', role: 'superadmin' } },
  }));
  server.graphql('user_list', () => ({
    user_list: { total_count: 1, items: [{ uuid: 'u1', email: 'bob@example.com', status: 'active', groups: [] }] },
  }));
  server.on('gql modify_user', () =>
    isProved
      ? { body: { data: { modify_user: { ok: true, msg: '' } } } }
      : {
          body: {
            data: { modify_user: { ok: false, msg: 'Prove again that it is you.' } },
            extensions: { problems: { modify_user: problem } },
          },
        },
  );
  server.on('POST /server/proof', (body) => {
    if (body.password !== 'right' && body.otp !== '123456')
      return { status: 401, body: { title: 'Refused', detail: 'The address or the password is wrong.' } };
    isProved = true;
    return { body: { expires: '2026-01-01T00:00:00Z' } };
  });
});

async function deactivate() {
  openPage('/people', server);
  await userEvent.click(await screen.findByRole('button', { name: 'Deactivate bob@example.com' }));
  await userEvent.click(within(await screen.findByRole('dialog')).getByRole('button', { name: 'Deactivate' }));
  return screen.findByLabelText('Password', { selector: 'input[type=password]' });
}

describe('a proof of who is there', () => {
  it('is asked for where it is demanded, and the act is then done once more', async () => {
    await userEvent.type(await deactivate(), 'wrong');
    await userEvent.click(screen.getByRole('button', { name: 'Go on' }));
    expect(await screen.findByText('The address or the password is wrong.')).toBeDefined();
    expect(count('gql modify_user')).toBe(1);
    await userEvent.clear(screen.getByLabelText('Password', { selector: 'input[type=password]' }));
    await userEvent.type(screen.getByLabelText('Password', { selector: 'input[type=password]' }), 'right');
    await userEvent.click(screen.getByRole('button', { name: 'Go on' }));
    await expect.poll(() => count('gql modify_user')).toBe(2);
    await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  });

  it('may be a one-time password', async () => {
    await deactivate();
    await userEvent.click(screen.getByRole('radio', { name: 'One-time password' }));
    await userEvent.type(
      await screen.findByLabelText('One-time password', { selector: 'input:not([type=radio])' }),
      '123456',
    );
    await userEvent.click(screen.getByRole('button', { name: 'Go on' }));
    await expect.poll(() => count('gql modify_user')).toBe(2);
  });

  it('is not asked for again after somebody has refused to give it', async () => {
    await deactivate();
    await userEvent.click(
      within(screen.getAllByRole('dialog').at(-1) as HTMLElement).getByRole('button', { name: 'Cancel' }),
    );
    expect(await screen.findByText('Prove again that it is you.')).toBeDefined();
    expect(count('gql modify_user')).toBe(1);
    expect(count('POST /server/proof')).toBe(0);
  });

  it('is asked for once where a proof does not help', async () => {
    server.on('POST /server/proof', () => ({ body: {} }));
    await userEvent.type(await deactivate(), 'right');
    await userEvent.click(screen.getByRole('button', { name: 'Go on' }));
    expect(await screen.findByText('Prove again that it is you.')).toBeDefined();
    expect(count('gql modify_user')).toBe(2);
  });

  it('is asked for by REST too', async () => {
    server.on('GET /func/manager/status', () => ({ body: { status: 'running', active_sessions: 0, nodes: [] } }));
    server.on('PUT /func/manager/status', () =>
      isProved ? { status: 204 } : { status: 403, body: { ...problem, title: 'Prove again that it is you.' } },
    );
    const { rest } = await import('../../api/client');
    const { proofs } = await import('../../api/proof');
    server.install();
    const stop = proofs.subscribe(() => undefined);
    const reply = rest.PUT('/manager/status', { body: { status: 'frozen' } });
    await expect.poll(() => proofs.isWanted()).toBe(true);
    await proofs.give({ password: 'right' });
    expect((await reply).response.status).toBe(204);
    expect(server.requests.filter(({ key }) => key === 'PUT /func/manager/status').map(({ body }) => body)).toEqual([
      { status: 'frozen' },
      { status: 'frozen' },
    ]);
    stop();
  });
});
