/** A request for a service, as the web server passes it on. */
export interface ServiceCall {
  method: string;
  path: string;
  body?: string;
  content_type?: string;
}

export const modes = ['chat', 'embeddings', 'request'] as const;
export type Mode = (typeof modes)[number];
export const isMode = (value: unknown): value is Mode => modes.some((mode) => mode === value);

export interface Message {
  role: 'system' | 'user' | 'assistant';
  content: string;
}

export interface ChatDraft {
  model: string;
  system: string;
  /** As typed; empty leaves it to the service. */
  temperature: string | number;
  maxTokens: string | number;
}

const numberOf = (value: string | number) => (String(value).trim() === '' ? undefined : Number(value));

/** Returns the call of a chat that goes on after `messages`. */
export function chatCall(draft: ChatDraft, messages: readonly Message[]): ServiceCall {
  const system: Message[] = draft.system.trim() === '' ? [] : [{ role: 'system', content: draft.system }];
  const body = {
    model: draft.model,
    messages: [...system, ...messages],
    temperature: numberOf(draft.temperature),
    max_tokens: numberOf(draft.maxTokens),
    stream: true,
    stream_options: { include_usage: true },
  };
  return { method: 'POST', path: '/v1/chat/completions', body: JSON.stringify(body) };
}

export function embeddingsCall(model: string, texts: readonly string[]): ServiceCall {
  return { method: 'POST', path: '/v1/embeddings', body: JSON.stringify({ model, input: texts }) };
}

/** Returns the mode that suits a service: by the names of its models, or a plain request where it names none. */
export function usualMode(models: readonly string[]): Mode {
  if (models.length === 0) return 'request';
  return models.every((name) => /embed/i.test(name)) ? 'embeddings' : 'chat';
}

export const methods = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE'] as const;
export const hasBody = (method: string) => method !== 'GET' && method !== 'DELETE';

/** Whether a path is one that the web server passes on: visible ASCII that stays below the URL of the service. */
export function isPath(path: string): boolean {
  return /^\/[!-~]{0,2047}$/.test(path) && !path.includes('#') && !/\/(\.|%2e){1,2}(\/|$|\?)/i.test(path);
}
