/**
 * Tells the page that its login session has ended, and readers when there is a new one.
 *
 * Other tabs of the browser share the cookie: a login in one of them is the login of all, told by its access key.
 */
class LoginExpiry {
  private expired = false;
  private waiting: (() => void)[] = [];
  private readonly listeners = new Set<() => void>();
  private readonly loginListeners = new Set<(accessKey: string) => void>();
  private readonly channel = 'BroadcastChannel' in globalThis ? new BroadcastChannel('backendai-login') : null;

  constructor() {
    this.channel?.addEventListener('message', (event: MessageEvent<string>) => {
      for (const listener of this.loginListeners) listener(event.data);
    });
  }

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Calls a listener with the access key of each login in another tab. Returns how to end that. */
  readonly onLogin = (listener: (accessKey: string) => void): (() => void) => {
    this.loginListeners.add(listener);
    return () => this.loginListeners.delete(listener);
  };

  readonly isExpired = (): boolean => this.expired;

  /** Reports that a request was answered with 401. */
  report(): void {
    if (this.expired) return;
    this.expired = true;
    this.notify();
  }

  /** Returns once somebody has logged in again. */
  renewal(): Promise<void> {
    return this.expired ? new Promise((resolve) => this.waiting.push(resolve)) : Promise.resolve();
  }

  /** Reports a new login, to other tabs too. */
  renew(accessKey: string): void {
    this.channel?.postMessage(accessKey);
    this.settle();
  }

  /** Ends the expiry of this tab alone. */
  settle(): void {
    this.expired = false;
    const waiting = this.waiting;
    this.waiting = [];
    for (const resolve of waiting) resolve();
    this.notify();
  }

  private notify(): void {
    for (const listener of this.listeners) listener();
  }
}

export const expiry = new LoginExpiry();
