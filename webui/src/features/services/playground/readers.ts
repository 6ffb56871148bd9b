import { parseObject } from '../../../api/filters';

/** Takes the answer of a service piece by piece, and tells what is to be shown of it. */
export interface Reader<T> {
  /** `ms`: since the call, as in `feed`. */
  begin: (status: number, mediaType: string) => void;
  feed: (text: string, ms: number) => void;
  end: () => void;
  view: () => T;
}

/** More of an answer is not read: a page with more text is of no use to a person. */
export const mostCharacters = 1_000_000;

/** Splits a stream of server-sent events into the data of each. */
export class EventData {
  private rest = '';

  feed(text: string): string[] {
    const lines = (this.rest + text).split(/\r\n|\n/);
    this.rest = lines.pop() ?? '';
    return lines.filter((line) => line.startsWith('data:')).map((line) => line.slice(5).trimStart());
  }
}

const objectOf = (value: unknown) =>
  (typeof value === 'object' && value !== null ? value : {}) as Record<string, unknown>;
const textOf = (value: unknown) => (typeof value === 'string' ? value : '');

/** Returns the sentence of an error in the body of an answer, as servers with the API of OpenAI and others word it. */
export function errorOf(body: string): string {
  const document = parseObject(body);
  const error = objectOf(document.error);
  const sentence =
    textOf(error.message) || textOf(document.error) || textOf(document.message) || textOf(document.detail);
  return (sentence || textOf(document.title) || body).slice(0, 2000);
}

/** The models that a service names; none where it has no API of OpenAI. */
export function modelsOf(body: string): string[] {
  const { data } = parseObject(body) as { data?: unknown };
  const names = Array.isArray(data) ? data.map((model) => textOf(objectOf(model).id)) : [];
  return [...new Set(names.filter((name) => name !== ''))];
}

export interface ChatView {
  text: string;
  /** What a model thinks before it answers. */
  thought: string;
  /** Milliseconds from the call to the first token; null before it. */
  firstMs: number | null;
  tokens: number;
  /** Whether the service counted the tokens; otherwise pieces of the answer are counted. */
  isCounted: boolean;
  /** Null before a second token. */
  tokensPerSecond: number | null;
  /** The answer is cut where it has reached the most tokens. */
  isCut: boolean;
  error: string | null;
}

/** Reads the answer of a chat, streamed or whole. */
export class ChatReader implements Reader<ChatView> {
  private readonly events = new EventData();
  private raw = '';
  private isStream = false;
  private status = 200;
  private lastMs = 0;
  private pieces = 0;
  private shown: Omit<ChatView, 'tokensPerSecond' | 'tokens'> = {
    text: '',
    thought: '',
    firstMs: null,
    isCounted: false,
    isCut: false,
    error: null,
  };
  private counted = 0;

  begin(status: number, mediaType: string): void {
    this.status = status;
    this.isStream = status === 200 && mediaType.startsWith('text/event-stream');
  }

  feed(text: string, ms: number): void {
    if (!this.isStream) this.raw += text;
    else for (const data of this.events.feed(text)) this.take(data, ms);
  }

  end(): void {
    if (this.isStream)
      this.feed('\n', this.lastMs); // the last line may lack its end
    else if (this.status === 200 && 'choices' in parseObject(this.raw)) this.take(this.raw, 0);
    else this.shown.error = errorOf(this.raw) || `HTTP ${this.status}`;
  }

  view(): ChatView {
    const { firstMs, isCounted } = this.shown;
    const tokens = isCounted ? this.counted : this.pieces;
    const ms = this.lastMs - (firstMs ?? 0);
    return { ...this.shown, tokens, tokensPerSecond: tokens > 1 && ms > 0 ? ((tokens - 1) * 1000) / ms : null };
  }

  private take(data: string, ms: number): void {
    if (data === '[DONE]') return;
    const document = parseObject(data);
    if (document.error !== undefined && document.error !== null) this.shown.error = errorOf(data);
    const choices = Array.isArray(document.choices) ? document.choices : [];
    const choice = objectOf(choices[0]);
    const message = objectOf(choice.delta ?? choice.message);
    const text = textOf(message.content);
    const thought = textOf(message.reasoning_content) || textOf(message.reasoning);
    if (text !== '' || thought !== '') {
      this.shown.text += text;
      this.shown.thought += thought;
      this.pieces += 1;
      this.lastMs = ms;
      if (this.isStream) this.shown.firstMs ??= ms;
    }
    if (choice.finish_reason === 'length') this.shown.isCut = true;
    const count = objectOf(document.usage).completion_tokens;
    if (typeof count === 'number' && Number.isFinite(count)) {
      this.counted = count;
      this.shown.isCounted = true;
    }
  }
}

/** The text of any answer. */
export class TextReader implements Reader<{ text: string; isText: boolean }> {
  private text = '';

  begin(): void {}
  end(): void {}
  feed(text: string): void {
    this.text += text;
  }
  view() {
    return { text: this.text, isText: !this.text.includes('\0') };
  }
}

export interface Embedded {
  text: string;
  numbers: readonly number[];
  /** The cosine of the angle to the first one, -1 to 1. */
  likeness: number;
}

function cosine(a: readonly number[], b: readonly number[]): number {
  const dot = (x: readonly number[], y: readonly number[]) =>
    x.reduce((sum, value, index) => sum + value * (y[index] ?? 0), 0);
  return dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);
}

/** Returns the embeddings in an answer, in the order of the texts; null if it has other than one for each. */
export function embeddingsOf(texts: readonly string[], body: string): Embedded[] | null {
  const { data } = parseObject(body) as { data?: unknown };
  if (!Array.isArray(data) || data.length !== texts.length) return null;
  const vectors = data.map((each) => objectOf(each).embedding);
  if (!vectors.every((vector): vector is number[] => Array.isArray(vector) && vector.every(Number.isFinite)))
    return null;
  const first = vectors[0] ?? [];
  return texts.map((text, index) => {
    const numbers = vectors[index] ?? [];
    return { text, numbers, likeness: cosine(first, numbers) };
  });
}
