import { type OpenStream, openEvents, type SessionEvent, type StreamState } from './events';

const joinMs = 250;
const hiddenMs = 5 * 60_000;

type Listener<E> = (events: E[]) => void;
type Message<E> =
  | { kind: 'event'; event: E }
  | { kind: 'position'; id: string }
  | { kind: 'question' }
  | { kind: 'state'; state: StreamState };

/** Returns how long to wait before the next try after so many failed ones, in milliseconds: up to half a minute. */
export function retryDelay(failures: number, random: () => number = Math.random): number {
  return Math.min(1000 * 2 ** failures, 30_000) * (0.5 + random() / 2);
}

/**
 * Receives events of one kind, by one stream for all tabs of the browser.
 *
 * The tab that holds the lock has the stream and passes events on; when it is closed, another takes over and resumes
 * after the last event, or, before any came, where the stream began, which a new tab asks the others for. Bursts are
 * joined. A tab that is hidden for five minutes lets go of the lock.
 */
export class LiveEvents<E extends { id: string }> {
  private readonly listeners = new Set<Listener<E>>();
  private readonly stateListeners = new Set<() => void>();
  private readonly channel: BroadcastChannel | null;
  private pending: E[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;
  private lastId = '';
  private streamState: StreamState = 'connecting';
  private stop: (() => void) | null = null;

  /** `name` is that of the lock and the channel of the tabs. */
  constructor(
    private readonly name: string,
    private readonly openStream: OpenStream<E>,
  ) {
    this.channel = 'BroadcastChannel' in globalThis ? new BroadcastChannel(name) : null;
  }

  /** Calls a listener with the joined events; begins to receive with the first one. Returns how to end it. */
  readonly subscribe = (listener: Listener<E>): (() => void) => {
    this.listeners.add(listener);
    if (this.listeners.size === 1) this.start();
    return () => {
      this.listeners.delete(listener);
      if (this.listeners.size === 0) this.end();
    };
  };

  readonly subscribeState = (listener: () => void): (() => void) => {
    this.stateListeners.add(listener);
    return () => this.stateListeners.delete(listener);
  };

  readonly state = (): StreamState => this.streamState;

  private start(): void {
    const abort = new AbortController();
    let hiddenTimer: ReturnType<typeof setTimeout> | undefined;
    let release: (() => void) | null = null;
    const onMessage = (message: MessageEvent<Message<E>>) => this.receive(message.data);
    this.channel?.addEventListener('message', onMessage);

    const lead = () =>
      new Promise<void>((resolve) => {
        let failures = 0;
        let retryTimer: ReturnType<typeof setTimeout> | undefined;
        let close: () => void = () => undefined;
        const open = () => {
          close = this.openStream(this.lastId, {
            onEvent: (event) => this.share({ kind: 'event', event }),
            onPosition: (id) => this.share({ kind: 'position', id }),
            onState: (state) => {
              this.share({ kind: 'state', state });
              if (state === 'open') failures = 0;
              // A browser reconnects by itself after a broken connection, but not after a refusal.
              if (state === 'down') {
                close();
                clearTimeout(retryTimer);
                retryTimer = setTimeout(open, retryDelay(failures));
                failures += 1;
              }
            },
          });
        };
        open();
        release = () => {
          release = null;
          clearTimeout(retryTimer);
          close();
          resolve();
        };
      });
    const request = () => {
      // Pages without TLS have no locks: each tab has a stream of its own then.
      const locks = navigator.locks as LockManager | undefined | null;
      if (!locks) {
        void lead();
        return;
      }
      locks.request(this.name, { signal: abort.signal }, lead).catch(() => {
        // Aborted: nobody listens any more.
      });
    };
    const onVisibility = () => {
      clearTimeout(hiddenTimer);
      if (document.hidden) hiddenTimer = setTimeout(() => release?.(), hiddenMs);
      else if (release === null) request();
    };
    document.addEventListener('visibilitychange', onVisibility);
    this.channel?.postMessage({ kind: 'question' } satisfies Message<E>);
    request();
    this.stop = () => {
      abort.abort();
      release?.();
      clearTimeout(hiddenTimer);
      document.removeEventListener('visibilitychange', onVisibility);
      this.channel?.removeEventListener('message', onMessage);
    };
  }

  private end(): void {
    this.stop?.();
    this.stop = null;
    clearTimeout(this.timer);
    this.timer = undefined;
    this.pending = [];
  }

  private share(message: Message<E>): void {
    this.channel?.postMessage(message);
    this.receive(message);
  }

  private receive(message: Message<E>): void {
    if (message.kind === 'state') {
      if (this.streamState === message.state) return;
      this.streamState = message.state;
      for (const listener of this.stateListeners) listener();
      return;
    }
    if (message.kind === 'question') {
      if (this.lastId !== '') this.channel?.postMessage({ kind: 'position', id: this.lastId } satisfies Message<E>);
      return;
    }
    if (message.kind === 'position') {
      this.lastId ||= message.id;
      return;
    }
    this.lastId = message.event.id || this.lastId;
    this.pending.push(message.event);
    this.timer ??= setTimeout(() => this.deliver(), joinMs);
  }

  private deliver(): void {
    const events = this.pending;
    this.pending = [];
    this.timer = undefined;
    for (const listener of this.listeners) listener(events);
  }
}

/** The events of all sessions that the user sees. */
export const live = new LiveEvents<SessionEvent>('backendai-events', openEvents);
