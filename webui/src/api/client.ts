import createClient from 'openapi-fetch';
import { markAttendance } from './attendance';
import { expiry } from './expiry';
import type { paths } from './generated/rest';
import { checkLogin } from './login';
import { prefix } from './prefix';
import { Problem, problemFrom } from './problems';
import { proofRequired, proofs } from './proof';

export const apiBase = `${prefix}func`;
const readsByPost = ['/check-presets', '/config/get'];

/**
 * Sends a request to the manager through the web server and returns its successful response.
 *
 * When the login session has ended, reads wait for the next login and are repeated; writes are not, since the person
 * has to say again that they want them. A write that is refused with 401 may have had a wrong password or code in it, so
 * the web server is asked whether the login lives. What is refused for the lack of a recent proof of who is there is
 * repeated once with one, as nothing was done. Throws Problem.
 */
export async function send(
  request: Request,
  isRead = request.method === 'GET' || readsByPost.some((path) => request.url.endsWith(path)),
  mayProve = true,
): Promise<Response> {
  markAttendance(request.headers);
  const repeat = isRead ? request.clone() : null;
  const proved = request.clone();
  let response: Response;
  try {
    response = await fetch(request);
  } catch (error) {
    if (request.signal.aborted) throw error;
    throw new Problem({ type: 'about:offline', title: 'offline', status: 0 });
  }
  if (response.ok) return response;
  if (response.status === 401 && (repeat !== null || !(await isLoggedIn()))) {
    expiry.report();
    if (repeat !== null) {
      await expiry.renewal();
      return send(repeat, false, mayProve);
    }
  }
  const problem = problemFrom(response.status, await response.json().catch(() => null), response.headers);
  if (problem.code === proofRequired && mayProve && (await proofs.obtain())) return send(proved, isRead, false);
  throw problem;
}

async function isLoggedIn(): Promise<boolean> {
  return (await checkLogin().catch(() => null)) !== null;
}

/** The REST API of the manager by its paths. Its calls throw Problem, so `data` is there whenever they return. */
export const rest = createClient<paths>({
  baseUrl: `${window.location.origin}${apiBase}`,
  fetch: (request) => send(request),
});

/** Returns the data of a reply of `rest`. */
export async function dataOf<T>(reply: Promise<{ data?: T }>): Promise<T> {
  return (await reply).data as T;
}
