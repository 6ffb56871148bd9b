import { Upload } from 'tus-js-client';
import { asProblem, Problem } from '../../api/problems';
import { ticketUrl } from './rules';

export type UploadState = 'waiting' | 'sending' | 'failed' | 'done';

export interface UploadItem {
  id: number;
  name: string;
  size: number;
  sent: number;
  state: UploadState;
  problem: Problem | null;
}

export interface Ticket {
  url: string;
  token: string;
}

interface Sending {
  start: () => void;
  abort: () => Promise<void> | void;
}

export interface SendingEvents {
  onProgress: (sent: number) => void;
  onSuccess: () => void;
  onError: (error: unknown) => void;
}

interface Options {
  folder: string;
  /** Returns a ticket for each new upload, in their order; an empty file is created by that. */
  requestTickets: (files: readonly { path: string; size: number }[]) => Promise<readonly Ticket[]>;
  onDone: () => void;
  send?: (file: File, url: string, events: SendingEvents) => Sending;
  storage?: Pick<Storage, 'getItem' | 'setItem' | 'removeItem'>;
}

const parallel = 3;
const partBytes = 8 << 20;
/** How many files, and of how many bytes together, one request gets tickets for: none may expire before its file is sent. */
const batchFiles = 100;
const batchBytes = 64 << 20;
const storagePrefix = 'backendai-upload:';

/** Sends a file by tus 1.0 to an upload that exists; it goes on where the server's offset is. */
export function sendByTus(file: File, url: string, { onProgress, onSuccess, onError }: SendingEvents): Sending {
  return new Upload(file, {
    uploadUrl: url,
    chunkSize: partBytes,
    retryDelays: [500, 1000, 3000, 5000, 10_000, 20_000],
    storeFingerprintForResuming: false,
    onProgress: (sent) => onProgress(sent),
    onSuccess: () => onSuccess(),
    onError,
  });
}

/** Returns the key under which an unfinished upload of a file is found again, after a reload too. */
export function fingerprint(folder: string, path: string, file: Pick<File, 'size' | 'lastModified'>): string {
  return `${storagePrefix}${JSON.stringify([folder, path, file.size, file.lastModified])}`;
}

/** Forgets where unfinished uploads go on: whoever has the address of one may write its file. */
export function forgetUploads(storage: Storage = localStorage): void {
  try {
    for (const key of Object.keys(storage)) if (key.startsWith(storagePrefix)) storage.removeItem(key);
  } catch {
    // Storage may be forbidden: nothing is in it then.
  }
}

/** Uploads to one folder, a few at a time. An upload that was broken off goes on when the same file is chosen again. */
export class UploadQueue {
  private items: UploadItem[] = [];
  private readonly files = new Map<number, { file: File; path: string }>();
  private readonly sending = new Map<number, Sending>();
  private readonly listeners = new Set<() => void>();
  private readonly tickets = new Map<number, Ticket>();
  private lastRequest: Promise<void> = Promise.resolve();
  private isBatchRefused = false;
  private nextId = 1;

  constructor(private readonly options: Options) {}

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  readonly snapshot = (): readonly UploadItem[] => this.items;

  /** Adds files, each with its path in the folder. */
  add(files: readonly { file: File; path: string }[]): void {
    const added = files.map((entry): UploadItem => {
      const id = this.nextId++;
      this.files.set(id, entry);
      return { id, name: entry.path, size: entry.file.size, sent: 0, state: 'waiting', problem: null };
    });
    this.items = [...this.items, ...added];
    this.isBatchRefused = false;
    this.pump();
  }

  retry(id: number): void {
    this.change(id, { state: 'waiting', problem: null });
    this.pump();
  }

  /** Stops an upload. What the server has of it goes on when the file is chosen again, or is removed after some days. */
  cancel(id: number): void {
    void this.sending.get(id)?.abort();
    this.forget(id);
    this.items = this.items.filter((item) => item.id !== id);
    this.notify();
    this.pump();
  }

  /** Stops all uploads: whoever is here next does not go on with them. */
  stop(): void {
    const items = this.items;
    this.items = [];
    for (const { id } of items) {
      void this.sending.get(id)?.abort();
      this.forget(id);
    }
    this.notify();
  }

  clearDone(): void {
    for (const item of this.items) if (item.state === 'done') this.forget(item.id);
    this.items = this.items.filter((item) => item.state !== 'done');
    this.notify();
  }

  private forget(id: number): void {
    this.sending.delete(id);
    this.files.delete(id);
    this.tickets.delete(id);
  }

  private pump(): void {
    const free = parallel - this.items.filter((item) => item.state === 'sending').length;
    for (const item of this.items.filter(({ state }) => state === 'waiting').slice(0, Math.max(0, free))) {
      this.change(item.id, { state: 'sending' });
      void this.begin(item.id);
    }
    this.notify();
  }

  private async begin(id: number): Promise<void> {
    const entry = this.files.get(id);
    if (entry === undefined) return;
    const { file, path } = entry;
    const key = fingerprint(this.options.folder, path, file);
    try {
      const storedUrl = this.read(key);
      const isEarlier = storedUrl !== null || this.tickets.has(id);
      const url = storedUrl ?? (await this.makeUrl(id));
      if (!this.files.has(id)) return;
      if (file.size === 0) {
        this.finish(id, key); // the ticket has created it
        return;
      }
      this.write(key, url);
      this.send(id, file, url, key, isEarlier);
    } catch (error) {
      this.fail(id, error);
    }
  }

  /** Sends a file to a URL, which may be one that was given earlier: it may have expired. */
  private send(id: number, file: File, url: string, key: string, isEarlier: boolean): void {
    const { send = sendByTus } = this.options;
    const upload = send(file, url, {
      onProgress: (sent) => this.change(id, { sent }),
      onSuccess: () => this.finish(id, key),
      onError: (error) => {
        if (!this.files.has(id)) return;
        this.write(key, null);
        if (isEarlier)
          void this.begin(id); // its ticket has expired, or another one has finished it
        else this.fail(id, error);
      },
    });
    this.sending.set(id, upload);
    upload.start();
  }

  private async makeUrl(id: number): Promise<string> {
    const request = this.lastRequest.then(() => this.requestTickets(id));
    this.lastRequest = request.catch(() => undefined); // one at a time: what begins together shares a request
    await request;
    const ticket = this.tickets.get(id);
    if (ticket === undefined) throw new Error('cancelled');
    this.tickets.delete(id);
    return ticketUrl(ticket.url, ticket.token);
  }

  /** Requests the tickets of a file and of those that wait behind it, as the server limits how many requests are sent. */
  private async requestTickets(id: number): Promise<void> {
    if (this.tickets.has(id)) return;
    const batch = [id, ...(this.isBatchRefused ? [] : this.waitingBehind(id))];
    try {
      await this.storeTickets(batch);
    } catch (error) {
      const { status = 0 } = asProblem(error);
      if (batch.length === 1 || status < 400 || status === 401 || status === 429 || status >= 500) throw error;
      this.isBatchRefused = true; // one of the others may be the cause: from now on each is asked for alone
      await this.storeTickets([id]);
    }
  }

  private async storeTickets(ids: readonly number[]): Promise<void> {
    const present = ids.flatMap((id) => {
      const entry = this.files.get(id);
      return entry === undefined ? [] : [{ id, path: entry.path, size: entry.file.size }];
    });
    if (present.length === 0) return;
    const tickets = await this.options.requestTickets(present.map(({ path, size }) => ({ path, size })));
    for (const [index, { id }] of present.entries()) {
      const ticket = tickets[index];
      if (ticket !== undefined && this.files.has(id)) this.tickets.set(id, ticket);
    }
  }

  private waitingBehind(id: number): number[] {
    let bytes = this.files.get(id)?.file.size ?? 0;
    const ids: number[] = [];
    for (const item of this.items) {
      const entry = this.files.get(item.id);
      if (item.id === id || entry === undefined || this.tickets.has(item.id) || this.sending.has(item.id)) continue;
      if (item.state !== 'waiting' && item.state !== 'sending') continue;
      if (this.read(fingerprint(this.options.folder, entry.path, entry.file)) !== null) continue;
      bytes += entry.file.size;
      if (bytes > batchBytes || ids.length + 1 >= batchFiles) break;
      ids.push(item.id);
    }
    return ids;
  }

  private finish(id: number, key: string): void {
    this.write(key, null);
    const size = this.items.find((item) => item.id === id)?.size ?? 0;
    this.change(id, { state: 'done', sent: size });
    this.sending.delete(id);
    this.options.onDone();
    this.pump();
  }

  private fail(id: number, error: unknown): void {
    if (!this.files.has(id)) return;
    this.sending.delete(id);
    this.change(id, { state: 'failed', problem: problemOf(error) });
    this.pump();
  }

  private change(id: number, fields: Partial<UploadItem>): void {
    this.items = this.items.map((item) => (item.id === id ? { ...item, ...fields } : item));
    this.notify();
  }

  private notify(): void {
    for (const listener of this.listeners) listener();
  }

  private read(key: string): string | null {
    try {
      return (this.options.storage ?? localStorage).getItem(key);
    } catch {
      return null;
    }
  }

  private write(key: string, url: string | null): void {
    const storage = this.options.storage ?? localStorage;
    try {
      if (url === null) storage.removeItem(key);
      else storage.setItem(key, url);
    } catch {
      // Storage may be full or forbidden: the upload cannot go on after a reload.
    }
  }
}

function problemOf(error: unknown): Problem {
  const response = (error as { originalResponse?: { getStatus: () => number; getBody: () => string } | null })
    ?.originalResponse;
  if (!response) return asProblem(error);
  try {
    const body = JSON.parse(response.getBody()) as { title?: string; detail?: string; msg?: string };
    return new Problem({
      title: body.title ?? 'HTTP',
      detail: body.detail ?? body.msg ?? '',
      status: response.getStatus(),
    });
  } catch {
    return new Problem({ title: `HTTP ${response.getStatus()}`, status: response.getStatus() });
  }
}
