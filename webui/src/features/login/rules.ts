import type { Problem } from '../../api/problems';

/** What a refused sign-in asks for. */
export type Refusal = 'register' | 'otp' | 'expired-password' | 'blocked' | 'wrong' | 'other';

/** Returns why a sign-in was refused, from the problem of the web server. */
export function refusalOf(problem: Problem): Refusal {
  if (problem.status === 429) return 'blocked';
  if (/register two-factor/i.test(problem.detail)) return 'register';
  if (/otp/i.test(problem.detail)) return 'otp';
  if (/password[- ](expired|change)|must be changed/i.test(`${problem.code} ${problem.detail}`))
    return 'expired-password';
  return problem.status === 401 ? 'wrong' : 'other';
}

/** Returns where to go after a sign-in: a path of this site, never an address of another. */
export function safeNext(next: unknown): string {
  if (typeof next !== 'string' || !next.startsWith('/') || /^\/[/\\]/.test(next)) return '/';
  // Browsers drop tabs and line ends of URLs, so that "/\t/evil" would be another host.
  const hasControl = [...next].some((character) => character.charCodeAt(0) < 0x20 || character === '\\');
  return hasControl || /^\/(token-)?login/.test(next) ? '/' : next;
}

/** Returns the token of another site in an address: in its fragment, which servers do not see, or in its search; empty without one. */
export function tokenOf(search: string, hash: string): string {
  for (const text of [hash.replace(/^#/, ''), search]) {
    const parts = new URLSearchParams(text);
    const token = parts.get('sToken') ?? parts.get('token');
    if (token !== null) return token.replace(/^"|"$/g, '');
  }
  return '';
}
