/** A refusal of the server: an RFC 9457 problem document, or what stands for one. */
export class Problem extends Error {
  readonly type: string;
  readonly title: string;
  readonly detail: string;
  /** HTTP status; 0 if there was no answer. */
  readonly status: number;
  readonly requestId: string;
  /** Field name to what is wrong with it. */
  readonly fields: Readonly<Record<string, string>>;
  /** Seconds until another try is accepted; null if the server does not say. */
  readonly retryAfter: number | null;

  constructor(init: {
    type?: string;
    title: string;
    detail?: string;
    status: number;
    requestId?: string;
    fields?: Record<string, string>;
    retryAfter?: number | null;
  }) {
    super(init.detail || init.title);
    this.name = 'Problem';
    this.type = init.type ?? 'about:blank';
    this.title = init.title;
    this.detail = init.detail ?? '';
    this.status = init.status;
    this.requestId = init.requestId ?? '';
    this.fields = init.fields ?? {};
    this.retryAfter = init.retryAfter ?? null;
  }

  /** The last part of the type, such as `session-not-found`. */
  get code(): string {
    return this.type.slice(this.type.lastIndexOf('/') + 1);
  }
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function fieldsOf(value: unknown): Record<string, string> {
  if (typeof value !== 'object' || value === null) return {};
  return Object.fromEntries(
    Object.entries(value).filter((entry): entry is [string, string] => typeof entry[1] === 'string'),
  );
}

/** Returns the problem that a body describes; a body that is none gives its status alone. */
export function problemFrom(status: number, body: unknown, headers?: Headers): Problem {
  const document = (typeof body === 'object' && body !== null ? body : {}) as Record<string, unknown>;
  const retryAfter = Number.parseInt(headers?.get('Retry-After') ?? '', 10);
  return new Problem({
    type: textOf(document.type) || 'about:blank',
    title: textOf(document.title) || `HTTP ${status}`,
    detail: textOf(document.detail) || textOf(document.msg),
    status,
    requestId: textOf(document.request_id) || (headers?.get('X-Request-ID') ?? ''),
    fields: fieldsOf(document.data),
    retryAfter: Number.isFinite(retryAfter) ? retryAfter : null,
  });
}

/** Returns any thrown value as a problem. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  return new Problem({ title: error instanceof Error ? error.message : String(error), status: 0 });
}
