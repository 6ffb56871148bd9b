import { vi } from 'vitest';

export interface Reply {
  status?: number;
  body?: unknown;
  /** Instead of `body`: what is sent as it is. */
  raw?: BodyInit;
  headers?: Record<string, string>;
}

type Handler = (body: Record<string, unknown>, request: Request) => Reply | Promise<Reply>;

/**
 * A web server for tests, below `fetch`: routes by method and path, and GraphQL by the first field of a document.
 *
 * A request that it does not know is answered with 501, so that no test passes on an accident.
 */
export class FakeServer {
  readonly requests: { key: string; body: Record<string, unknown> }[] = [];
  private readonly handlers = new Map<string, Handler>();

  constructor() {
    this.on('POST /server/login-check', () => ({
      body: { authenticated: true, data: { access_key: 'AKIATEST', role: 'user', status: 'active' } },
    }));
    this.on('GET /func/manager/announcement', () => ({ body: { enabled: false, message: '' } }));
    this.on('GET /func/manager/status', () => ({ body: { status: 'running', active_sessions: 0, nodes: [] } }));
    this.on('GET /func/config/resource-slots/details', () => ({ body: {} }));
    this.graphql('user', () => ({
      user: {
        uuid: 'u',
        email: 'ann@example.com',
        full_name: 'Ann',
        role: 'user',
        domain_name: 'default',
        groups: [{ id: 'g', name: 'team' }],
      },
      keypair: { access_key: 'AKIATEST', is_admin: false, resource_policy: 'default', concurrency_used: 0 },
    }));
  }

  /** Answers requests to `METHOD /path`. */
  on(key: string, handler: Handler): void {
    this.handlers.set(key, handler);
  }

  /** Answers queries whose first field is `field`; a handler may throw a reply. */
  graphql(field: string, handler: (variables: Record<string, unknown>) => unknown): void {
    this.on(`gql ${field}`, async (body) => ({
      body: { data: await handler((body.variables ?? {}) as Record<string, unknown>) },
    }));
  }

  install(): void {
    vi.stubGlobal('fetch', async (input: RequestInfo | URL, init?: RequestInit) => {
      const request =
        input instanceof Request ? input : new Request(new URL(String(input), window.location.origin), init);
      const text = request.method === 'GET' ? '' : await request.text();
      const body = (text === '' ? {} : JSON.parse(text)) as Record<string, unknown>;
      const { pathname } = new URL(request.url);
      const field = /\{\s*(\w+)/.exec(String(body.query ?? ''))?.[1];
      const key = pathname.endsWith('/admin/gql') ? `gql ${field}` : `${request.method} ${pathname}`;
      this.requests.push({ key, body });
      const reply = (await this.handlers.get(key)?.(body, request)) ?? {
        status: 501,
        body: { title: `no handler of ${key}` },
      };
      return new Response(reply.raw ?? (reply.body === undefined ? null : JSON.stringify(reply.body)), {
        status: reply.status ?? 200,
        headers: { 'Content-Type': 'application/json', ...reply.headers },
      });
    });
  }
}
