import { screen } from '@testing-library/react';
import userEvent from '@testing-library/user-event';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { boot } from '../../../api/boot';
import { openPage } from '../../../testing/render';
import { FakeServer } from '../../../testing/server';

let server: FakeServer;
beforeEach(() => {
  server = new FakeServer();
  server.on('POST /server/login-check', () => ({ body: { authenticated: false } }));
  server.on('GET /server/sign-on', () => ({ body: { providers: [] } }));
  boot.features = { signup: true };
});
afterEach(() => {
  boot.features = {};
});
const sent = (key: string) => server.requests.filter((request) => request.key === key).map(({ body }) => body);

describe('signing up', () => {
  it('is offered by the login where the site lets people', async () => {
    openPage('/login', server);
    expect((await screen.findByRole('link', { name: 'Sign up for an account' })).getAttribute('href')).toBe('/sign-up');
  });
  it('is not offered elsewhere, and its page says so', async () => {
    boot.features = {};
    openPage('/sign-up', server);
    expect(await screen.findByText('This site takes no new accounts here')).toBeDefined();
    expect(screen.queryByRole('button')).toBeNull();
  });
  it('tells at the field what is refused, and then where the token is', async () => {
    server.on('POST /func/auth/signup', (body) =>
      body.password === 'short'
        ? { status: 400, body: { title: 'invalid', msg: 'The password is too short.', data: { password: 'short' } } }
        : { body: { status: 'before-verification' } },
    );
    openPage('/sign-up', server);
    await userEvent.type(await screen.findByLabelText('E-mail address'), 'new@example.com');
    await userEvent.type(screen.getByLabelText('Password'), 'short');
    await userEvent.click(screen.getByRole('button', { name: 'Sign up' }));
    expect(await screen.findByText('The password is too short.')).toBeDefined();
    expect(screen.queryByRole('alert')).toBeNull();
    await userEvent.type(screen.getByLabelText('Password'), ' no more');
    await userEvent.click(screen.getByRole('button', { name: 'Sign up' }));
    expect(await screen.findByText('Look into your mailbox')).toBeDefined();
    expect(sent('POST /func/auth/signup').at(-1)).toEqual({
      email: 'new@example.com',
      password: 'short no more',
      full_name: '',
    });
  });
});

describe('the proof of an address', () => {
  it('takes the token and the password', async () => {
    server.on('POST /func/auth/verify-email', (body) =>
      body.token === 'right'
        ? { body: { status: 'active' } }
        : { status: 401, body: { title: 'The token is not valid.' } },
    );
    openPage('/verify-email', server);
    await userEvent.type(await screen.findByLabelText('Token'), 'wrong');
    await userEvent.type(screen.getByLabelText('The password that you chose'), 'a long password');
    await userEvent.click(screen.getByRole('button', { name: 'Make it active' }));
    expect(await screen.findByText('The token is not valid.')).toBeDefined();
    await userEvent.clear(screen.getByLabelText('Token'));
    await userEvent.type(screen.getByLabelText('Token'), ' right ');
    await userEvent.click(screen.getByRole('button', { name: 'Make it active' }));
    expect(await screen.findByText('The account is active')).toBeDefined();
    expect(sent('POST /func/auth/verify-email').at(-1)).toEqual({ token: 'right', password: 'a long password' });
  });
});
