import { prefix } from './prefix';
import { Problem, problemFrom } from './problems';

/** Who has logged in, as the web server says. */
export interface Login {
  accessKey: string;
  role: string;
}

export interface Credentials {
  username: string;
  password: string;
  otp?: string;
}

function post(path: string, body?: unknown): Promise<Response> {
  return postJson(`server/${path}`, body);
}

async function postJson(path: string, body?: unknown): Promise<Response> {
  try {
    return await fetch(`${prefix}${path}`, {
      method: 'POST',
      credentials: 'same-origin',
      headers: body === undefined ? {} : { 'Content-Type': 'application/json' },
      body: body === undefined ? null : JSON.stringify(body),
    });
  } catch {
    throw new Problem({ type: 'about:offline', title: 'offline', status: 0 });
  }
}

async function read(response: Response): Promise<Record<string, unknown>> {
  const body: unknown = await response.json().catch(() => null);
  if (!response.ok && !(response.status === 502 && body !== null)) {
    throw problemFrom(response.status, body, response.headers);
  }
  return (body ?? {}) as Record<string, unknown>;
}

function loginOf(reply: Record<string, unknown>): Login | null {
  const data = reply.data as Record<string, unknown> | null | undefined;
  if (reply.authenticated !== true || !data) return null;
  return { accessKey: String(data.access_key ?? ''), role: String(data.role ?? 'user') };
}

/** Asks whether this browser has a login session. Throws Problem. */
export async function checkLogin(): Promise<Login | null> {
  return loginOf(await read(await post('login-check')));
}

/** Signs in. Throws Problem: what the manager says, or 429 with the seconds to wait. */
export async function signIn(credentials: Credentials): Promise<Login> {
  return loggedIn(await post('login', credentials));
}

async function loggedIn(response: Response): Promise<Login> {
  const reply = await read(response);
  const login = loginOf(reply);
  if (login !== null) return login;
  const data = (reply.data ?? {}) as Record<string, unknown>;
  throw new Problem({
    type: String(data.type ?? 'about:blank'),
    title: String(data.title ?? 'Login failed'),
    detail: String(data.details ?? ''),
    status: response.status === 200 ? 401 : response.status,
    ...(typeof data.two_factor_registration_token === 'string'
      ? { fields: { registration_token: data.two_factor_registration_token } }
      : {}),
  });
}

/** Signs in by a token that another site has given, in the request or, for an empty one, in a cookie. Throws Problem. */
export async function signInByToken(token: string): Promise<Login> {
  return loggedIn(await post('token-login', token === '' ? {} : { token }));
}

/** Asks for an account, whose address is proved by a token that is sent there. Throws Problem. */
export async function signUp(account: { email: string; password: string; full_name: string }): Promise<void> {
  await read(await postJson('func/auth/signup', account));
}

/** Proves the address of a new account by the token that was sent there. Throws Problem. */
export async function verifyEmail(token: string, password: string): Promise<void> {
  await read(await postJson('func/auth/verify-email', { token, password }));
}

async function register(path: string, body: Record<string, string>): Promise<Record<string, unknown>> {
  return read(await postJson(`func/totp/anon${path}`, body));
}

/** Begins the registration of one-time passwords that a sign-in demands. Throws Problem. */
export async function beginRegistration(token: string): Promise<{ key: string; uri: string }> {
  const reply = await register('', { registration_token: token });
  return { key: String(reply.totp_key ?? ''), uri: String(reply.totp_uri ?? '') };
}

/** Confirms the registration by the first one-time password and returns the recovery codes. Throws Problem. */
export async function confirmRegistration(token: string, otp: string): Promise<string[]> {
  const { recovery_codes: codes } = await register('/verify', { registration_token: token, otp });
  return Array.isArray(codes) ? codes.map(String) : [];
}

/** Ends the login session of this browser, or all of the user. Throws Problem. */
export async function signOut(everywhere = false): Promise<void> {
  await read(await post('logout', { everywhere }));
}

/** Proves again who is there; the browser keeps the proof where no script reads it. Throws Problem. */
export async function prove(proof: { password: string } | { otp: string }): Promise<void> {
  await read(await post('proof', proof));
}

/** Begins the life of the login session anew and returns its end. Throws Problem. */
export async function extendLogin(): Promise<string> {
  return String((await read(await post('extend-login-session'))).expires ?? '');
}

/** Changes a password that must be changed before a sign-in. Throws Problem. */
export async function changeExpiredPassword(
  username: string,
  current: string,
  wanted: string,
  otp?: string,
): Promise<void> {
  const body = { username, current_password: current, new_password: wanted, ...(otp ? { otp } : {}) };
  await read(await post('update-password-no-auth', body));
}

/** Returns the names of the services at which the site lets people sign in; none if they cannot be asked for. */
export async function signOnServices(): Promise<string[]> {
  const response = await fetch(`${prefix}server/sso`, { credentials: 'same-origin' }).catch(() => null);
  if (!response?.ok) return [];
  const { providers } = ((await response.json().catch(() => null)) ?? {}) as { providers?: unknown };
  return Array.isArray(providers) ? providers.filter((name): name is string => typeof name === 'string') : [];
}

/** Returns where a sign-in at a service begins; it ends at `path` of this site. */
export function signOnAddress(service: string, path: string): string {
  return `${prefix}server/sso/${encodeURIComponent(service)}/login?next=${encodeURIComponent(path)}`;
}
