import { screen, within } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { describe, expect, it } from 'vitest';
import { openPage } from '../../testing/render';
import { FakeServer } from '../../testing/server';
import { sshKeyFault } from './rules';

const key = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA ann@laptop';

describe('a public key', () => {
  it.each([
    [key, null],
    [`${key}\n`, null],
    ['', 'empty'],
    ['-----BEGIN OPENSSH PRIVATE KEY-----', 'private'],
    [`${key}\n${key}`, 'malformed'],
    ['key', 'malformed'],
  ])('%j is judged', (text, fault) => expect(sshKeyFault(text)).toBe(fault));
});

it('replaces the SSH key by one of the person, and never sends a private one', async () => {
  const server = new FakeServer();
  let stored = '';
  server.on('GET /func/auth/ssh-keypair', () => ({ body: { ssh_public_key: stored } }));
  server.on('POST /func/auth/ssh-keypair', (body) => {
    stored = String(body.pubkey);
    return { body: { ssh_public_key: stored, ssh_private_key: '' } };
  });
  openPage('/account', server);
  await userEvent.click(await screen.findByRole('button', { name: 'Use my own key' }));
  const dialog = await screen.findByRole('dialog');
  expect(dialog.textContent).toContain('replaces the present key');
  const field = within(dialog).getByRole('textbox');
  await userEvent.click(field);
  await userEvent.paste('-----BEGIN OPENSSH PRIVATE KEY-----');
  await userEvent.click(within(dialog).getByRole('button', { name: 'Use this key' }));
  expect(within(dialog).getByText(/nobody but you may have it/)).toBeDefined();
  expect(server.requests.some((request) => request.key === 'POST /func/auth/ssh-keypair')).toBe(false);
  await userEvent.clear(field);
  await userEvent.click(field);
  await userEvent.paste(key);
  await userEvent.click(within(dialog).getByRole('button', { name: 'Use this key' }));
  await expect.poll(() => screen.queryByRole('dialog')).toBeNull();
  expect(await screen.findByText(key)).toBeDefined();
});
